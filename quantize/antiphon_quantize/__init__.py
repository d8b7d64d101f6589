"""Checkpoints with weights of fewer bits."""
