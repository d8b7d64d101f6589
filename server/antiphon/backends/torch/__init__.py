"""Antiphon's own modules in PyTorch, with explicit state: the production path on GPUs."""
