"""Markers, steps and flush padding, with a fake recogniser with a delay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.models.spec import LMSpec
from antiphon.models.transcript import (
    MAX_PATIENCE_FRAMES,
    Event,
    FrameHeard,
    Marked,
    SpeechTiming,
    Transcript,
    Word,
    WordEnd,
)

Kind = TypeVar("Kind")
FRAME = 10
DELAY = 4
PAUSES = (0.25, 0.5)
LM = LMSpec(dim=1, num_layers=1, num_heads=1, context=8, n_q=1, dep_q=0, card=4, text_card=100, delays=(0, 0))


def spelled(ids: Sequence[int]) -> str:
    return "-".join(map(str, ids))


class Caller:
    """A caller and its recogniser: each frame of audio holds a token, written ``DELAY`` frames later."""

    def __init__(self, prefix_frames: int = 1) -> None:
        timing = SpeechTiming(0.08, 0.08 * DELAY, prefix_frames)
        self.transcript = Transcript(timing, LM, FRAME, spelled)
        self.plan = [3] * (prefix_frames + DELAY)  # by step
        self.step = 0
        self.padding_step = 0
        self.events: list[Event] = []
        self.live(prefix_frames)

    def live(self, frames: int) -> None:
        for _ in range(frames):
            self.events += self.transcript.hear(self.plan[self.step], PAUSES)
            self.step += 1
        self.padding_step = self.step

    def say(self, tokens: Sequence[int]) -> None:
        self.plan += tokens
        self.transcript.received(FRAME * len(tokens))
        self.live(len(tokens))

    def mark(self, marker: int) -> None:
        self.events += self.transcript.mark(marker)

    def stop(self) -> int:
        """Silence, for as long as it is wanted; returns how many frames that was.

        With no audio in between it goes on where it stopped, as a row does.
        """
        heard = 0
        while self.transcript.padding_frames_wanted():
            token = self.plan[self.padding_step] if self.padding_step < len(self.plan) else 3
            self.events += self.transcript.feed_padding(token)
            self.padding_step += 1
            heard += 1
        return heard

    def told(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    def texts(self) -> list[str]:
        return [word.text for word in self.told(Word)]


WORD = st.lists(st.integers(5, 9), min_size=1, max_size=3).map(lambda ids: [0, *ids, 3])
TURNS = st.lists(st.tuples(st.lists(WORD, max_size=3), st.booleans(), st.booleans()), max_size=6)


@given(TURNS, st.sampled_from([1, 3]))
@example([([[0, 5, 3]], True, False), ([[0, 5, 3]], False, True)], 1)
def test_silence_in_between_changes_no_word_and_every_marker_comes_back_in_order(
    turns: list[tuple[list[list[int]], bool, bool]], prefix_frames: int
) -> None:
    caller, plain = Caller(prefix_frames), Caller(prefix_frames)
    for index, (words, is_marked, stops) in enumerate(turns):
        for tokens in words:
            caller.say(tokens)
            plain.say(tokens)
        if is_marked:
            caller.mark(index)
        if stops:
            caller.stop()
            said = [spelled(tokens[1:-1]) for turn in turns[: index + 1] for tokens in turn[0]]
            assert not is_marked or caller.texts() == said  # nothing said is left out at a marker
    for each in (caller, plain):
        each.mark(99)
        each.stop()
    assert caller.texts() == plain.texts()
    times = [word.start_s for word in caller.told(Word)]
    assert times == pytest.approx([word.start_s for word in plain.told(Word)])
    marked = [index for index, (_, is_marked, _) in enumerate(turns) if is_marked]
    assert [mark.id for mark in caller.told(Marked)] == [*marked, 99]
    assert caller.told(FrameHeard) == plain.told(FrameHeard)
    assert not caller.transcript.has_marks


def test_steps_count_the_frames_of_the_caller_alone() -> None:
    caller = Caller(prefix_frames=3)
    assert caller.told(FrameHeard) == []
    caller.say([3] * 5)
    caller.mark(0)
    caller.stop()
    caller.say([3] * 2)
    assert caller.told(FrameHeard) == [FrameHeard(index, PAUSES) for index in range(1, 8)]


def test_a_model_without_heads_tells_no_steps() -> None:
    transcript = Caller().transcript
    assert transcript.hear(3, ()) == []


def test_a_marker_comes_back_after_the_delay_when_the_caller_goes_on() -> None:
    caller = Caller()
    caller.say([3] * 5)
    caller.mark(7)
    for frame in range(DELAY):
        assert caller.told(Marked) == [], frame
        caller.say([3])
    assert caller.told(Marked) == [Marked(7)]


def test_a_marker_waits_for_the_end_of_a_word_but_not_for_ever() -> None:
    caller = Caller()
    caller.say([0, *[5] * 40])
    caller.mark(7)
    for _ in range(DELAY + MAX_PATIENCE_FRAMES - 1):
        caller.say([5])
    assert caller.told(Marked) == []
    caller.say([5])
    assert caller.told(Marked) == [Marked(7)]
    assert caller.texts() == []  # the word itself goes on


def test_the_silence_aside_ends_when_the_last_word_does() -> None:
    caller = Caller()
    caller.say([0, 5, 3])
    caller.mark(1)
    assert caller.stop() == DELAY
    caller.say([0, 5])
    caller.mark(2)
    assert caller.stop() == DELAY + 1
    assert caller.texts() == ["5", "5"]
    assert [type(event) for event in caller.events if not isinstance(event, FrameHeard)] == [
        *(Word, WordEnd, Marked),
        *(Word, WordEnd, Marked),
    ]


def test_a_last_word_ends_no_later_than_the_audio() -> None:
    caller = Caller()
    caller.say([3, 3, 0, 5])
    caller.mark(1)
    caller.stop()
    assert caller.told(Word) == [Word("5", pytest.approx(0.32), 8, pytest.approx(0.48))]  # type: ignore[arg-type]
    assert caller.told(WordEnd) == [WordEnd(pytest.approx(0.32))]  # type: ignore[arg-type]


@pytest.mark.parametrize("has_spoken", [False, True])
def test_a_marker_with_nothing_new_before_it_comes_back_at_once(has_spoken: bool) -> None:
    caller = Caller()
    if has_spoken:
        caller.say([0, 5, 3])
        caller.mark(1)
        caller.stop()
    caller.events.clear()
    caller.mark(2)
    assert caller.events == [Marked(2)]
    assert caller.transcript.padding_frames_wanted() == 0


def test_one_sample_more_is_something_new() -> None:
    caller = Caller()
    caller.say([3] * 3)
    caller.mark(1)
    caller.stop()
    caller.transcript.received(1)
    caller.mark(2)
    assert caller.told(Marked) == [Marked(1)]
    assert caller.stop() == 1 + DELAY  # the unfinished frame, and the delay
    assert caller.told(Marked) == [Marked(1), Marked(2)]


def test_two_words_of_one_boundary_are_told_once_each() -> None:
    caller = Caller()
    caller.say([0, 5, 3])
    caller.mark(1)
    caller.stop()
    caller.say([6, 3, 0, 7, 3])
    caller.mark(2)
    caller.stop()
    assert caller.texts() == ["5", "6", "7"]
