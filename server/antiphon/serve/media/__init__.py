"""Bytes to samples and samples to bytes."""
