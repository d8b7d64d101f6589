"""Speech in growing files: the samples are unchanged, and the first frame is sent at once."""

from __future__ import annotations

import io
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.codec import Encoder
from antiphon.audio.codecs import make_encoder
from antiphon.audio.pcm import FloatArray
from antiphon.audio.stream import decode_pieces
from antiphon.audio.tempo import MAX_SPEED, MIN_SPEED, Tempo
from antiphon.errors import AudioError
from antiphon.protocol import speech_request
from tests.audio.test_stream import tone

RATE = 24_000
FRAME = 1920
LAG = {"mp3": 1200, "opus": 400, "aac": 2300, "flac": 0, "wav": 0, "pcm": 0}
"""Samples that a codec may add in front or behind, rounded up to its frames."""


FORMATS = tuple(speech_request.CODECS)


def speech_file(name: str) -> Encoder:
    return make_encoder(speech_request.CODECS[name], RATE)


def written(name: str, pcm: FloatArray, size: int = FRAME) -> list[bytes]:
    """What a file grows by, frame by frame, and its end."""
    file = speech_file(name)
    grown = [file.encode(pcm[start : start + size]) for start in range(0, pcm.size, size)] + [file.finish()]
    file.close()
    return [b"".join(payloads) for payloads in grown]


def heard(name: str, data: bytes) -> FloatArray:
    if name == "pcm":
        return (np.frombuffer(data, "<i2") / 32768).astype(np.float32)
    return np.concatenate([np.zeros(0, np.float32), *decode_pieces(io.BytesIO(data), RATE)])


def pitch_hz(pcm: FloatArray) -> float:
    return int(np.abs(np.fft.rfft(pcm)).argmax()) * RATE / pcm.size


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_said_is_heard_and_begins_with_the_first_frame(name: str) -> None:
    pcm = tone(RATE, 2.0)
    grown = written(name, pcm)
    assert len(grown[0]) > 100
    sound = heard(name, b"".join(grown))
    assert pcm.size - 60 <= sound.size <= pcm.size + LAG[name] + 2 * FRAME
    middle = sound[12_000:36_000]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(
        0.4 / math.sqrt(2), rel=0.06
    )  # LAME leaves 5 % of room
    assert pitch_hz(middle) == pytest.approx(330, abs=3)


@pytest.mark.parametrize("name", ["flac", "wav", "pcm"])
@given(sizes=st.lists(st.integers(0, 5000), max_size=6))
def test_what_loses_nothing_is_exact_in_any_portions(name: str, sizes: list[int]) -> None:
    total = sum(sizes)
    pcm = np.random.default_rng(total).integers(-32768, 32768, total) / 32768
    file = speech_file(name)
    cuts = np.cumsum([0, *sizes])
    grown = [data for a, b in pairwise(cuts) for data in file.encode(pcm[a:b].astype(np.float32))]
    data = b"".join(grown + file.finish())
    file.close()
    if total or name != "flac":
        assert heard(name, data).tolist() == pcm.astype(np.float32).tolist()


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_without_sound_ends_and_may_be_given_up(name: str) -> None:
    file = speech_file(name)
    assert len(b"".join(file.finish())) == (44 if name == "wav" else 0)
    file.close()
    begun = speech_file(name)
    begun.encode(tone(RATE, 0.08))
    begun.close()


@pytest.mark.parametrize("name", FORMATS)
def test_samples_must_be_finite(name: str) -> None:
    file = speech_file(name)
    with pytest.raises(AudioError, match="a sample to be encoded is not finite"):
        file.encode(np.full(FRAME, np.nan, np.float32))
    file.close()


def test_the_speeds_are_those_of_the_api() -> None:
    assert (MIN_SPEED, MAX_SPEED) == (speech_request.MIN_SPEED, speech_request.MAX_SPEED)


@given(speed=st.floats(MIN_SPEED, MAX_SPEED), seconds=st.floats(1.0, 2.0))
def test_another_speed_keeps_the_pitch(speed: float, seconds: float) -> None:
    pcm = tone(RATE, seconds)
    tempo = Tempo(speed, RATE)
    pieces = [tempo.feed(pcm[start : start + FRAME]) for start in range(0, pcm.size, FRAME)]
    sound = np.concatenate([*pieces, tempo.finish()])
    assert sound.size / RATE == pytest.approx(seconds / speed, rel=0.03, abs=0.06)
    assert pitch_hz(sound) == pytest.approx(330, abs=6)
    assert max(piece.size for piece in pieces) <= 4 * FRAME / min(1.0, speed)


def test_a_speed_out_of_range_is_refused() -> None:
    with pytest.raises(AudioError, match=r"a speed of 5 is out of range: 0\.25 to 4"):
        Tempo(5.0, RATE)


def test_no_sound_at_another_speed_is_none() -> None:
    assert Tempo(2.0, RATE).finish().size == 0
