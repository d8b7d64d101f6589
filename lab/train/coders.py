"""Passes speech through real coders of telephones, radios and files.

The encoders are libav's, from the package av. Opus is excluded, since the tests of the models use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import av
import numpy as np
import sphn

from antiphon.arrays import FloatArray
from lab.train.augment import LONGEST_DELAY_SAMPLES, SAMPLE_RATE, in_time


@dataclass(frozen=True, slots=True)
class Coder:
    """One of libav's encoders: its name, its rate in Hz, its sample format, and its bit rates (none: a fixed
    one)."""

    name: str
    rate: int
    form: str
    bits_per_s: tuple[int, ...] = ()

    def through(self, rng: np.random.Generator, pcm: FloatArray) -> FloatArray:
        """Return ``pcm [samples]`` at 24 kHz after this coder, of the same length and without delay."""
        longer = np.pad(pcm, (0, LONGEST_DELAY_SAMPLES))  # the delay's own end is cut off
        low = sphn.resample(longer[None], src_sample_rate=SAMPLE_RATE, dst_sample_rate=self.rate)[0]
        bits = int(rng.choice(self.bits_per_s)) if self.bits_per_s else None
        heard = np.concatenate(list(self._decoded(low, bits)))
        wide = sphn.resample(heard[None], src_sample_rate=self.rate, dst_sample_rate=SAMPLE_RATE)[0]
        return in_time(wide, pcm)

    def _decoded(self, pcm: FloatArray, bits: int | None) -> Iterator[FloatArray]:
        encoder: Any = av.CodecContext.create(self.name, "w")
        encoder.sample_rate, encoder.layout, encoder.format = self.rate, "mono", self.form
        if bits is not None:
            encoder.bit_rate = bits
        encoder.open()
        decoder: Any = av.CodecContext.create(encoder.codec.canonical_name, "r")
        decoder.sample_rate, decoder.layout = self.rate, "mono"
        decoder.extradata = encoder.extradata
        for packet in self._packets(encoder, pcm):
            for frame in decoder.decode(packet):
                yield _floats(frame)

    def _packets(self, encoder: Any, pcm: FloatArray) -> Iterator[Any]:
        size = encoder.frame_size or self.rate // 50
        blocks = np.pad(pcm, (0, -pcm.size % size + 3 * size)).reshape(-1, size)  # the rest is late
        for place, block in enumerate(blocks):
            frame = av.AudioFrame.from_ndarray(_samples(block, self.form), format=self.form, layout="mono")
            frame.sample_rate, frame.pts = self.rate, place * size
            yield from encoder.encode(frame)
        yield from encoder.encode(None)


def _samples(block: FloatArray, form: str) -> Any:
    if form.startswith("s16"):
        return (block.clip(-1, 1) * 32767).astype(np.int16)[None]
    return block.astype(np.float32)[None]


def _floats(frame: Any) -> FloatArray:
    samples = frame.to_ndarray().reshape(-1)
    whole = np.issubdtype(samples.dtype, np.integer)
    heard: FloatArray = samples.astype(np.float32) / (np.float32(32768) if whole else np.float32(1))
    return heard


NARROW: Final = (
    Coder("libopencore_amrnb", 8_000, "s16", (4750, 5900, 7400, 12_200)),
    Coder("g723_1", 8_000, "s16", (6300,)),
    Coder("nellymoser", 8_000, "flt"),
)
WIDE: Final = (
    Coder("g722", 16_000, "s16"),
    Coder("sbc", 16_000, "s16", (32_000, 64_000)),
    Coder("libmp3lame", 24_000, "fltp", (16_000, 24_000, 40_000)),
    Coder("aac", 24_000, "fltp", (12_000, 20_000, 32_000)),
)


def by_a_narrow_coder(rng: np.random.Generator, pcm: FloatArray) -> FloatArray:
    """Pass speech at 8 kHz through AMR or G.723.1 of telephones, or Flash's Nellymoser."""
    return NARROW[rng.integers(len(NARROW))].through(rng, pcm)


def by_a_wide_coder(rng: np.random.Generator, pcm: FloatArray) -> FloatArray:
    """Pass speech through G.722, Bluetooth's SBC, MP3 or AAC."""
    return WIDE[rng.integers(len(WIDE))].through(rng, pcm)
