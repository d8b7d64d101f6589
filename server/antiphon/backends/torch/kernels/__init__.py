"""Triton kernels and their launches; nothing here is imported where they do not run."""
