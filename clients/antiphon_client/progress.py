"""A progress bar on standard error: redrawn in place on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

from typing import TextIO

WIDTH = 30
TERMINAL_INTERVAL_S = 0.1
LOG_INTERVAL_S = 10.0


class ProgressBar:
    """Shows the progress of a run; the time is a parameter."""

    def __init__(self, stream: TextIO, *, is_quiet: bool = False) -> None:
        """Draw on ``stream``, or not at all if ``is_quiet``."""
        self._stream = stream
        self._is_quiet = is_quiet
        self._is_terminal = stream.isatty()
        self._next_s = float("-inf")
        self._drawn = 0

    def show(self, fraction: float, detail: str, now_s: float) -> None:
        """Draw the bar at ``fraction`` of the whole, followed by ``detail``, unless it was drawn just now."""
        if self._is_quiet or now_s < self._next_s:
            return
        self._next_s = now_s + (TERMINAL_INTERVAL_S if self._is_terminal else LOG_INTERVAL_S)
        fraction = min(1.0, max(0.0, fraction))
        if not self._is_terminal:
            self._stream.write(f"{fraction:4.0%}  {detail}\n")
        else:
            filled = round(fraction * WIDTH)
            line = f"{'█' * filled}{'░' * (WIDTH - filled)} {fraction:4.0%}  {detail}"
            self._stream.write("\r" + line.ljust(self._drawn))
            self._drawn = len(line)
        self._stream.flush()

    def clear(self) -> None:
        """Remove the bar from the terminal, so that the next output starts on a clean line."""
        if self._drawn:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
            self._drawn = 0
