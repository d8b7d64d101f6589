"""Pocket-TTS through its own package: one utterance a row, a frame a tick (``antiphon[pocket]``)."""
