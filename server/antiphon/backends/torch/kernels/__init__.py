"""Triton kernels and their launches; nothing here is imported if they do not run."""
