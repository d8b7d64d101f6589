"""Handles audio without a model: codecs, files, sample rates, loudness, voice activity."""
