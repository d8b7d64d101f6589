"""Converts sample rates with a streaming polyphase filter, a Kaiser-windowed sinc.

After J. O. Smith, "Digital Audio Resampling" (https://ccrma.stanford.edu/~jos/resample/), with the rate as a
fraction, so that the filter has finitely many phases and is tabulated once.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError

MIN_RATE, MAX_RATE = 4_000, 384_000

_ZERO_CROSSINGS = 48
"""Zero crossings of the sinc on either side: flat to 0.88 of the band and 90 dB down at its edge."""
_KAISER_BETA = 9.0
_CUTOFF = 0.945
_BLOCK_SAMPLES = 4096
"""Output samples computed at once: bounds the memory for their windows of input."""


class Resampler:
    """Converts mono float32 from one rate to another, in any portions.

    The n-th output sample is the input at time ``n / target_rate``; there are ``ceil(samples * target_rate /
    source_rate)`` in total. Until :meth:`finish`, the last :attr:`delay_s` of the input have no output yet.
    This is half the filter's length: 6.4 ms between 8 and 24 kHz, 3.2 ms between 16 and 24 kHz.
    """

    def __init__(self, source_rate: int, target_rate: int) -> None:
        """Tabulate the filter.

        Raises:
            AudioError: a rate out of range.
        """
        for rate in (source_rate, target_rate):
            if not MIN_RATE <= rate <= MAX_RATE:
                raise AudioError(f"a rate of {rate} Hz is out of range: {MIN_RATE} to {MAX_RATE}")
        self._source_rate = source_rate
        divisor = math.gcd(source_rate, target_rate)
        self._up = target_rate // divisor
        self._down = source_rate // divisor
        self._half = math.ceil(_ZERO_CROSSINGS * max(1.0, self._down / self._up) / _CUTOFF)
        self._filter = _filter_table(self._up, self._down, self._half)
        # Silence before the first sample, so that the first window is whole.
        self._window: FloatArray = np.zeros(self._half - 1, np.float32)
        self._window_start = 1 - self._half  # input index of the window's first sample
        self._received = 0
        self._produced = 0

    @property
    def delay_s(self) -> float:
        """Seconds of further input that the latest output sample needs."""
        return 0.0 if self._up == self._down else self._half / self._source_rate

    def feed(self, pcm: FloatArray) -> FloatArray:
        """Add float32 ``[N]``; returns all samples that can be computed now, float32 ``[M]``."""
        if self._up == self._down:
            return pcm.copy()
        self._received += pcm.size
        return self._run(pcm, _ceil_divided((self._received - self._half) * self._up, self._down))

    def finish(self) -> FloatArray:
        """The remaining samples, float32 ``[M]``, computed with silence as further input. Call it last."""
        silence = np.zeros(self._half, np.float32)
        return self._run(silence, _ceil_divided(self._received * self._up, self._down))

    def _run(self, pcm: FloatArray, until: int) -> FloatArray:
        """Extend the window by ``pcm`` and compute the output samples before index ``until``."""
        window = np.concatenate((self._window, pcm))
        blocks: list[FloatArray] = [np.zeros(0, np.float32)]
        while self._produced < until:
            end = min(until, self._produced + _BLOCK_SAMPLES)
            blocks.append(self._block(window, np.arange(self._produced, end)))
            self._produced = end
        first = self._produced * self._down // self._up - self._half + 1
        self._window = window[first - self._window_start :].copy()
        self._window_start = first
        return np.concatenate(blocks)

    def _block(self, window: FloatArray, block: NDArray[np.int64]) -> FloatArray:
        """Output samples ``block``: each is one window of input times the filter of its phase."""
        moment = block * self._down
        begin = moment // self._up - self._half + 1 - self._window_start
        taps = np.lib.stride_tricks.sliding_window_view(window, 2 * self._half)[begin]
        result: FloatArray = np.einsum("nt,nt->n", taps, self._filter[moment % self._up])
        return result


def resample(pcm: FloatArray, source_rate: int, target_rate: int) -> FloatArray:
    """Convert ``pcm``, float32 ``[N]``, to float32 ``[ceil(N * target_rate / source_rate)]``, aligned in
    time.

    Raises:
        AudioError: a rate out of range.
    """
    resampler = Resampler(source_rate, target_rate)
    return np.concatenate((resampler.feed(pcm), resampler.finish()))


def _filter_table(up: int, down: int, half: int) -> FloatArray:
    """Return the filters of all phases, float32 ``[up, 2 * half]``; each filter sums to 1."""
    cutoff = _CUTOFF * min(1.0, up / down)
    phase = np.arange(up)[:, None] / up
    distance = phase - np.arange(1 - half, half + 1)[None, :]  # from an input sample to the output's time
    window = np.i0(_KAISER_BETA * np.sqrt(np.clip(1.0 - (distance / half) ** 2, 0.0, 1.0)))
    table = np.sinc(cutoff * distance) * window
    return np.asarray(table / table.sum(axis=1, keepdims=True), np.float32)


def _ceil_divided(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
