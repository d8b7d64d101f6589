"""Pocket-TTS through its own package: one utterance per row, one frame per tick (``antiphon[pocket]``)."""
