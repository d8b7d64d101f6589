"""An output gate, which replaces a model's silence with exact zeros.

A codec's silence is faint noise. Clients that detect the end of an answer by energy need exact zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.audio.pcm import FloatArray

BLOCK_MS = 10
"""Length of a block in ms: the loudest block determines a frame's loudness, so that an onset at the end of
the frame counts.
"""


@dataclass(frozen=True, slots=True)
class GateRules:
    """Thresholds of a gate; levels are the root mean square of a block in dB below full scale.

    ``hold_ms`` is longer than the pauses between words and shorter than the silence that clients take for the
    end of an answer (0.8 s). ``fade_ms`` is the length of the ramps from and to zero.
    """

    open_dbfs: float = -50.0
    close_dbfs: float = -56.0
    hold_ms: float = 400.0
    fade_ms: float = 5.0


class OutputGate:
    """The gate of one session, without delay: frames pass unchanged while it is open, except for the ramps.

    It opens for a whole frame if the frame has text or is louder than ``open_dbfs``. It closes at the first
    frame after ``hold_ms`` without text and without a block above ``close_dbfs``.
    """

    def __init__(self, sample_rate: int, rules: GateRules | None = None) -> None:
        """Begin closed."""
        rules = rules or GateRules()
        self._block = sample_rate * BLOCK_MS // 1000
        self._open_rms = 10 ** (rules.open_dbfs / 20)
        self._close_rms = 10 ** (rules.close_dbfs / 20)
        self._hold_samples = round(rules.hold_ms * sample_rate / 1000)
        self._ramp: FloatArray = np.linspace(
            0, 1, round(rules.fade_ms * sample_rate / 1000), dtype=np.float32
        )
        self._quiet_samples = 0
        self.is_open = False

    def pass_frame(self, pcm: FloatArray, *, has_text: bool) -> FloatArray:
        """The gated frame, float32 ``[N]``; ``has_text``: the frame's token is not padding."""
        was_open = self.is_open
        self._follow(pcm, has_text=has_text)
        if was_open and self.is_open:
            return pcm
        if not was_open and not self.is_open:
            return np.zeros_like(pcm)
        ramp = self._ramp[: pcm.size]
        if self.is_open:
            opened = pcm.copy()
            opened[: ramp.size] *= ramp
            return opened
        closed = np.zeros_like(pcm)
        closed[: ramp.size] = pcm[: ramp.size] * ramp[::-1]
        return closed

    def _follow(self, pcm: FloatArray, *, has_text: bool) -> None:
        loudest = self._loudest(pcm)
        if has_text or loudest > (self._close_rms if self.is_open else self._open_rms):
            self.is_open = True
            self._quiet_samples = 0
        elif self.is_open:
            self._quiet_samples += pcm.size
            self.is_open = self._quiet_samples <= self._hold_samples

    def _loudest(self, pcm: FloatArray) -> float:
        """The root mean square of the loudest block; a last, shorter one is padded with silence."""
        blocks = -(-pcm.size // self._block)
        padded = np.zeros(blocks * self._block, np.float32)
        padded[: pcm.size] = pcm
        square = np.square(padded.reshape(blocks, self._block), dtype=np.float64).mean(axis=1)
        return float(np.sqrt(square.max(initial=0.0)))
