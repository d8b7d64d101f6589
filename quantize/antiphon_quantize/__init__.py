"""Checkpoints in fewer bits."""
