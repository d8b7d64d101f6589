"""Terminal output of a call: the transcript as it is spoken, its current line after two level meters."""

from __future__ import annotations

import math
from typing import TextIO

import numpy as np

from antiphon_client.record import Samples

LINE_WIDTH = 72
METER_WIDTH = 10
FLOOR_DB = -60.0


def level_db(pcm: Samples) -> float:
    """Loudness of ``pcm``, float32 ``[samples]``: root mean square in dB of full scale, at least -60."""
    power = float(np.mean(np.square(pcm, dtype=np.float64))) if pcm.size else 0.0
    return max(FLOOR_DB, 10 * math.log10(power)) if power > 0 else FLOOR_DB


def meter(db: float) -> str:
    """A text bar that shows the level ``db``."""
    filled = round(METER_WIDTH * (1 - max(FLOOR_DB, min(0.0, db)) / FLOOR_DB))
    return "█" * filled + "░" * (METER_WIDTH - filled)


class Screen:
    """Writes words and meters to a stream; if the stream is not a terminal, it writes only the words."""

    def __init__(self, stream: TextIO) -> None:
        """Start on a clean line of ``stream``."""
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._line = ""
        self._drawn = 0

    def say(self, sentence: str) -> None:
        """Write a status line, such as the place in the queue."""
        self._end_line()
        self._write(f"{sentence}\n")

    def text(self, piece: str) -> None:
        """Write a piece of the model's text, broken into lines between words."""
        if len(self._line) + len(piece) > LINE_WIDTH and piece.startswith(" "):
            self._end_line()
            piece = piece.lstrip()
        self._line += piece
        if not self._is_terminal:
            self._write(piece)

    def levels(self, microphone_db: float, speaker_db: float) -> None:
        """Redraw the current line of words with both meters before it."""
        if self._is_terminal:
            shown = f"you {meter(microphone_db)}  model {meter(speaker_db)}  {self._line}"
            self._write("\r" + shown.ljust(self._drawn))
            self._drawn = len(shown)

    def close(self) -> None:
        """Leave the cursor on a new line."""
        self._end_line()

    def _end_line(self) -> None:
        if self._is_terminal and self._drawn:
            self._write("\r" + " " * self._drawn + "\r")
            self._drawn = 0
            if self._line:
                self._write(self._line + "\n")
        elif self._line:
            self._write((self._line if self._is_terminal else "") + "\n")
        self._line = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
