"""Word starts: reported by the synthesisers, shared by phones, placed in segments."""

from __future__ import annotations

import ctypes
import random
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import parselmouth
import pytest

from conftest import NO_RHVOICE
from lab.tests.train.made_up import TINY
from lab.train import segments, word_times
from lab.train.domain import Domain, Turn
from lab.train.questions import Asked, Utterance, plan, stretched, trim, write_shard
from lab.train.rhvoice import BLOCK_SAMPLES, RHVoice, _within_blocks, require_rhvoice
from lab.train.segments import GROUP, Segment, read_segments
from lab.train.synthetic_voices import Voice, speak
from lab.train.throats import Throat
from lab.train.word_times import Listener, Spoken, check_fit, read_word_times, starts_by_phones

QUESTION = "what is two plus three"
VOICES = [
    Voice("espeak-ng", "en-gb+m3", 150, 40),
    Voice("flite", "slt", 140),
    Voice("flite", "awb", 150, 60, Throat(0.9, 150.0, 1.3)),
    Voice("festival", "ked_diphone", 170, 60),
    Voice("festival", "cmu_us_slt_arctic_hts", 170, 60, Throat(1.1, 220.0, 0.7)),
]
RHVOICES = [Voice("rhvoice", "bdl", 150, 60), Voice("rhvoice", "clb", 170, 40, Throat(0.9, 150.0, 1.3))]
HAS_RHVOICE = shutil.which("RHVoice-test") is not None


def test_a_segment_bounds_where_its_utterance_begins() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        at, frames = float(rng.uniform(6, 7)), float(rng.uniform(5, 40))
        segment = Segment(np.zeros((8, 60), np.int16), int(at), int(at + frames), QUESTION, "")
        start, word = Spoken(frames * 0.08, (0.0, 0.4)).starts_in(segment)
        assert abs(start - at) <= 0.5
        assert word - start == pytest.approx(5.0)


def test_the_times_of_a_copy_are_those_of_its_segments_and_spoken_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    said = [
        Utterance(
            Turn("words", " ".join(["two"] * (1 + place % 3)), "", False),
            Voice("kokoro", "af_heart"),
            1.0,
            (rng.standard_normal(4000 * (2 + place)) * 0.1).astype(np.float32),
            tuple(0.1 * word for word in range(1 + place % 3)),
        )
        for place in range(GROUP + 2)
    ]
    asked, codes, times = (tmp_path / name for name in ("questions", "segments", "word-times"))
    asked.mkdir()
    write_shard(asked / "0000.npz", said)
    copies = ["--questions", str(asked), "--copies", "2", "--out"]
    assert segments.main([*copies, str(codes), "--codec", str(TINY)]) == 0
    assert word_times.main(["--questions", str(asked), "--out", str(times)]) == 0
    monkeypatch.setattr(Listener, "times", lambda *_: pytest.fail("spoken again"))
    assert word_times.main([*copies, str(times)]) == 0
    orders = []
    for name in ("0000.npz", "1000.npz"):
        scenes, _ = read_segments(codes / name)
        encoded = [one for scene in scenes for one in scene.segments]
        check_fit(encoded, read_word_times(times / name), times / name)
        orders.append([one.end - one.start for one in encoded])
    assert orders[0] != orders[1]
    assert sorted(orders[0])[-1] == pytest.approx(sorted(orders[1])[-1], abs=1)


def test_times_of_other_segments_are_refused() -> None:
    codes, path = np.zeros((8, 20), np.int16), Path("word-times/0003.npz")
    segments = [Segment(codes, 2, 12, words, "") for words in ("", "what is your name", "hello there")]
    fitting = [Spoken(0.8, ()), Spoken(0.8, (0, 0.2, 0.4, 0.6)), Spoken(0.8, ())]
    check_fit(segments, fitting, path)
    with pytest.raises(
        ValueError, match=r"segment 1 has 4 words in 10 frames, its times 2 words in 10.0 frames"
    ):
        check_fit(segments, [fitting[0], Spoken(0.8, (0, 0.4)), fitting[2]], path)
    with pytest.raises(
        ValueError, match=r"times 0 words in 11.2 frames, in word-times/0003.npz: made of other"
    ):
        check_fit(segments, [*fitting[:2], Spoken(0.9, ())], path)
    with pytest.raises(ValueError, match=r"^2 times for 3 segments in word-times/0003.npz"):
        check_fit(segments, fitting[:2], path)


@pytest.mark.parametrize("voice", [*VOICES, *(RHVOICES if HAS_RHVOICE else [])], ids=lambda v: v.name)
def test_words_are_timed_as_they_were_spoken(voice: Voice) -> None:
    turn, _, _ = plan(random.Random(2), Domain(), Asked(held_out=True))
    turn = replace(turn, question="what is the colour of chocolate")
    spoken = speak(voice, turn.question)
    times = Listener().times(Utterance(turn, voice, 1.1, trim(stretched(spoken, 1.1))))
    assert len(times.starts_s) == 6
    assert times.starts_s[0] < 0.06
    assert all(a < b for a, b in zip(times.starts_s, times.starts_s[1:], strict=False))
    assert 0.4 < times.seconds - times.starts_s[-1] < 1.1
    another = Utterance(turn, voice, 1.1, np.ones(24_000 * 9, np.float32))
    assert Listener().times(another).starts_s == ()


def test_a_bent_voice_says_the_same_thing_twice() -> None:
    sound = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    sound += np.sin(np.arange(16_000) * 2 * np.pi * 120 / 16_000).astype(np.float32) * (
        np.arange(16_000) > 8000
    )
    first, second = (Throat(0.9, 150.0, 1.3).bent(sound, 16_000) for _ in range(2))
    assert not np.array_equal(first, sound)
    assert np.array_equal(first, second)


def test_what_praat_makes_no_numbers_of_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    broken = parselmouth.Sound(np.full((1, 12_000), np.nan), 16_000)
    call = parselmouth.praat.call
    monkeypatch.setattr(
        parselmouth.praat,
        "call",
        lambda *given: broken if given[1] == "Change gender" else call(*given),
    )
    assert np.array_equal(Throat(0.9, 150.0, 1.3).bent(sound, 16_000), sound)


def test_an_utterance_that_is_silent_when_said_again_has_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = np.zeros(24_000, np.float32)
    monkeypatch.setattr(Listener, "_by_phones", lambda *_: (silent, 24_000, (0.0, 0.5)))
    turn = Turn("add", "two plus", "", is_held_out=False)
    said = Utterance(turn, Voice("flite", "slt"), 1.0, np.ones(12_000, np.float32))
    assert Listener().times(said) == Spoken(0.5, ())


def test_phones_are_shared_in_proportion() -> None:
    phones = [("pau", 0.2), ("a", 0.3), ("b", 0.5), ("pau", 0.6), ("c", 0.7), ("d", 1.0)]
    assert starts_by_phones(("ab", "cd"), {"ab": 2, "cd": 2}, phones) == (0.2, 0.6)
    assert starts_by_phones(("a", "bcdef"), {"a": 1, "bcdef": 7}, phones) == (0.2, 0.2)


@pytest.mark.skipif(not HAS_RHVOICE, reason=NO_RHVOICE)
@pytest.mark.parametrize("voice", RHVOICES, ids=lambda v: v.name)
def test_rhvoice_s_words_begin_when_it_says(voice: Voice) -> None:
    speaker, late_s = RHVoice(), []
    for word in ("lion", "nine", "you", "me", "six", "shall", "eleven"):
        pcm, starts = speaker.speak(voice, f"two. {word}")
        level = np.abs(pcm.astype(np.int64))
        loud = np.flatnonzero(level > 0.04 * level.max())
        after_the_pause = loud[1 + np.diff(loud).argmax()]
        late_s.append((after_the_pause - starts[1]) / 24_000)
    assert abs(np.median(late_s)) < 0.05  # half a block
    assert max(map(abs, late_s)) < 0.1


class Call:
    """A function of a library, whose result has a type."""

    restype: Any = None

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)


class Library:
    """Imitates RHVoice's: reports a word, then gives two blocks of sound for it."""

    def __init__(self, voices: int = 1, joined: int = 0) -> None:
        self.RHVoice_new_tts_engine = Call(lambda params: self.keep(params) if voices else None)
        self.RHVoice_new_message = Call(self.message)
        self.RHVoice_speak = Call(lambda _: self.speak())
        self.RHVoice_delete_message = Call(lambda _: None)
        self.joined = joined
        self.known = (b"bdl", b"clb", b"aleksandr", b"anna", b"elena", b"irina")[:voices]
        self.asked: list[tuple[str, float, float]] = []

    def keep(self, params: Any) -> int:
        self.callbacks = params._obj.callbacks
        return 1

    def message(
        self, _: Any, text: bytes, length: ctypes.c_uint, kind: int, params: Any, __: Any
    ) -> int | None:
        assert (length.value, kind) == (len(text), 0)
        told = params._obj
        self.asked.append((told.voice_profile.decode(), told.relative_rate, told.relative_pitch))
        self.words = text.decode().split()[self.joined :]
        return 2 if told.voice_profile in self.known else None

    def speak(self) -> None:
        block = (ctypes.c_short * BLOCK_SAMPLES)(*[7] * BLOCK_SAMPLES)
        for at, _ in enumerate(self.words):
            self.callbacks.word_starts(at, 1, None)
            for _ in range(2):
                assert self.callbacks.play_speech(block, BLOCK_SAMPLES, None) == 1


def test_words_begin_in_the_middle_of_the_block_that_rhvoice_told_of() -> None:
    library = Library()
    pcm, starts = RHVoice(library).speak(Voice("rhvoice", "bdl", 80, 100), QUESTION)
    assert library.asked == [("bdl", 0.5, 2.0)]
    assert pcm.tolist() == [7] * (10 * BLOCK_SAMPLES)
    assert starts == tuple(round(n * BLOCK_SAMPLES) for n in (0.5, 2.5, 4.5, 6.5, 8.5))
    assert _within_blocks([0, 4800, 4800, 4800]) == (1200, 5200, 6000, 6800)


def test_rhvoice_without_voices_or_without_this_one_says_so() -> None:
    with pytest.raises(OSError, match=r"^RHVoice found no voices; the variable RHVOICE_DATA_PATH names"):
        RHVoice(Library(voices=0))
    with pytest.raises(ValueError, match=r"^RHVoice has no voice nobody$"):
        RHVoice(Library()).speak(Voice("rhvoice", "nobody"), QUESTION)


@pytest.mark.parametrize(
    ("has_program", "voices", "message"),
    [
        (False, 1, r"^not installed: RHVoice-test; see .*, or omit --rhvoice$"),
        (True, 0, r"^RHVoice found no voices; .*; see .*, or omit --rhvoice$"),
        (True, 1, r"^RHVoice has no voice clb; see "),
        (True, 2, r"^RHVoice has no voice aleksandr; see "),
        (True, 6, None),
    ],
)
def test_what_rhvoice_lacks_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, has_program: bool, voices: int, message: str | None
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "RHVoice-test" if has_program else None)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library(voices))
    with nullcontext() if message is None else pytest.raises(SystemExit, match=message):
        require_rhvoice()


def test_words_that_rhvoice_takes_together_are_not_timed() -> None:
    turn, _, _ = plan(random.Random(2), Domain(), Asked(held_out=True))
    for joined in (0, 1):
        listener = Listener(rhvoice=RHVoice(Library(joined=joined)))
        sound = np.full(2 * BLOCK_SAMPLES * (5 - joined), 0.5, np.float32)
        said = Utterance(replace(turn, question=QUESTION), Voice("rhvoice", "bdl"), 1.0, sound)
        assert len(listener.times(said).starts_s) == (0 if joined else 5)
