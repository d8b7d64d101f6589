"""Hostile recordings: any bytes give audio or an AudioError, in bounded steps."""

from __future__ import annotations

import contextlib
import io
import tracemalloc
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.stream import decode_pieces, stated_seconds
from antiphon.errors import AudioError
from antiphon.serve.routes import asr_file
from antiphon.serve.routes.asr_file import STEP_PACKETS, decode_steps
from tests.audio.recordings import encoded
from tests.audio.test_mp4 import bomb
from tests.audio.test_stream import tone

RATE = 24_000
CONTAINERS = {
    "wav": ("pcm_s16le", RATE),
    "flac": ("flac", RATE),
    "mp3": ("libmp3lame", RATE),
    "ogg": ("libopus", 48_000),
    "mp4": ("aac", RATE),
    "webm": ("libopus", 48_000),
    "adts": ("aac", RATE),
}
WHOLE = {name: encoded(tone(RATE)[None], RATE, name, *how) for name, how in CONTAINERS.items()}


def try_to_hear(data: bytes) -> None:
    """There is audio, or an AudioError, and no other error."""
    with contextlib.suppress(AudioError):
        seconds = stated_seconds(io.BytesIO(data))
        assert seconds is None or seconds >= 0
        for piece in decode_pieces(io.BytesIO(data), RATE):
            assert piece.dtype == np.float32
            assert np.isfinite(piece).all()


@given(name=st.sampled_from(sorted(WHOLE)), cut=st.floats(0, 1))
def test_a_truncated_file_is_heard_as_far_as_it_goes_or_refused(name: str, cut: float) -> None:
    try_to_hear(WHOLE[name][: round(cut * len(WHOLE[name]))])


@given(
    name=st.sampled_from(sorted(WHOLE)),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=12),
)
def test_a_damaged_file_is_heard_or_refused(name: str, changes: list[tuple[float, int]]) -> None:
    data = bytearray(WHOLE[name])
    for place, value in changes:
        data[min(len(data) - 1, int(place * len(data)))] = value
    try_to_hear(bytes(data))


@given(
    head=st.sampled_from([whole[:size] for whole in WHOLE.values() for size in (12, 60, 300)]),
    tail=st.binary(max_size=600),
)
def test_nonsense_behind_a_right_beginning_is_heard_or_refused(head: bytes, tail: bytes) -> None:
    try_to_hear(head + tail)


@pytest.mark.parametrize("samples", [2**20 + 1, 2**31])
def test_a_bomb_takes_no_memory(samples: int) -> None:
    tracemalloc.start()
    try_to_hear(bomb(samples))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_packets_without_audio_end_a_step_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread serves all recordings: one of packets that hold nothing must not keep it."""
    nothing = np.zeros(0, np.float32)
    monkeypatch.setattr(asr_file, "decode_pieces", lambda *_: iter([nothing] * (2 * STEP_PACKETS + 1)))
    assert [piece.size for piece in decode_steps(io.BytesIO(), RATE)] == [0, 0, 0]


def test_a_step_is_about_a_second() -> None:
    data = encoded(tone(RATE, 10.0)[None], RATE, "ogg", "libopus", 48_000)
    sizes = [piece.size for piece in decode_steps(io.BytesIO(data), RATE)]
    assert 9 <= len(sizes) <= 11
    assert max(sizes) < 2 * RATE


def test_sound_of_a_codec_that_is_not_named_is_refused_in_words() -> None:
    assert WHOLE["mp4"].count(b"stbl") == 1
    unnamed = WHOLE["mp4"].replace(b"stbl", b"free")
    with pytest.raises(AudioError, match="audio of an unknown kind is not supported; there are: PCM, aac"):
        stated_seconds(io.BytesIO(unnamed))


def test_a_length_below_zero_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg gives one for some files of MP4 whose tables overflow."""
    stated = SimpleNamespace(duration=-5, time_base=Fraction(1, 24_000))
    opened = contextlib.nullcontext((SimpleNamespace(format=SimpleNamespace(name="mp4")), stated))
    monkeypatch.setattr("antiphon.audio.stream._opened", lambda file: opened)
    assert stated_seconds(io.BytesIO()) is None
