"""Reads checkpoints: their specs, files, tokenizers, delays and sampling parameters."""
