"""Audio of telephone and voice APIs: 16-bit samples or G.711 at some rate, to and from the model's samples.

Each direction resamples as a stream, so that frames join without a click; what lags behind is stated as
``delay_s``.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.audio import g711
from antiphon.audio.g711 import Law
from antiphon.audio.pcm import FloatArray, float_from_s16le, s16le_from_float
from antiphon.audio.resample import Resampler


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Mono samples at ``rate``: G.711 where there is a ``law``, else signed 16-bit, little endian."""

    rate: int
    law: Law | None = None


class LineDecoder:
    """What comes in, as the model hears it."""

    def __init__(self, line: LineFormat, rate: int) -> None:
        """Turn ``line`` into samples at ``rate``."""
        self._law = line.law
        self._resampler = Resampler(line.rate, rate)

    @property
    def delay_s(self) -> float:
        """How long the latest samples wait for what follows them."""
        return self._resampler.delay_s

    def feed(self, data: bytes) -> FloatArray:
        """Any whole number of samples to float32 ``[N]``.

        Raises:
            AudioError: half a sample.
        """
        pcm = float_from_s16le(data) if self._law is None else g711.decode(data, self._law)
        return self._resampler.feed(pcm)


class LineEncoder:
    """What the model says, as it goes out."""

    def __init__(self, line: LineFormat, rate: int) -> None:
        """Turn samples at ``rate`` into ``line``."""
        self._law = line.law
        self._resampler = Resampler(rate, line.rate)

    @property
    def delay_s(self) -> float:
        """How long the latest samples wait for what follows them."""
        return self._resampler.delay_s

    def encode(self, pcm: FloatArray) -> bytes:
        """Float32 ``[N]``, clipped to [-1, 1], to bytes.

        Raises:
            AudioError: a sample is NaN or infinite.
        """
        samples = self._resampler.feed(pcm)
        return s16le_from_float(samples) if self._law is None else g711.encode(samples, self._law)
