"""Tones come through every format of a line, in frames of any length, as they went in."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.audio.g711 import Law
from antiphon.errors import AudioError
from antiphon.serve.media.line import LineDecoder, LineEncoder, LineFormat

FORMATS = [LineFormat(24_000), LineFormat(16_000), LineFormat(8_000, Law.MU), LineFormat(8_000, Law.A)]


@pytest.mark.parametrize("line", FORMATS)
@pytest.mark.parametrize("piece", [160, 1920, 777])
def test_a_tone_comes_through_there_and_back(line: LineFormat, piece: int) -> None:
    encoder, decoder = LineEncoder(line, 24_000), LineDecoder(line, 24_000)
    tone = (0.4 * np.sin(2 * np.pi * 700 * np.arange(48_000) / 24_000)).astype(np.float32)
    wire = [encoder.encode(tone[start : start + piece]) for start in range(0, tone.size, piece)]
    heard = np.concatenate([decoder.feed(data) for data in wire])
    delay = encoder.delay_s + decoder.delay_s
    assert abs((tone.size - heard.size) / 24_000 - delay) < 0.001
    error = heard[1000:] - tone[1000 : heard.size]
    noise_db = 10 * np.log10(np.square(error).mean() / np.square(tone).mean())
    assert noise_db < (-30 if line.law else -80)  # G.711 has 38 dB at best


def test_a_sample_takes_its_bytes() -> None:
    frame = np.zeros(1920, np.float32)
    sizes = [len(LineEncoder(line, 24_000).encode(np.tile(frame, 100))) for line in FORMATS]
    assert [round(size / 8, -2) for size in sizes] == [48_000, 32_000, 8_000, 8_000]


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(AudioError, match="3 bytes are no whole number of s16le samples of 2 bytes"):
        LineDecoder(LineFormat(24_000), 24_000).feed(b"abc")
