"""Triton kernels, and what launches them; nothing here is imported where they do not run."""
