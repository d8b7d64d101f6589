"""Antiphon: a real-time streaming speech server for the Moshi family of models."""

__version__ = "0.1.0"
