"""Tokens to words with times by upstream's rules, on plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import CheckpointFormatError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.spec import MimiSpec, ModelSpec, PipelineKind
from antiphon.models.transcript import (
    MAX_WORD_TOKENS,
    PREFIX_FRAMES,
    SpeechTiming,
    Word,
    WordAssembler,
    WordEnd,
    WordEvent,
)

MIMI = MimiSpec(sample_rate=24000, frame_rate=12.5, codebooks=8, cardinality=64)


def spelled(ids: Sequence[int]) -> str:
    return "-".join(map(str, ids))


def timing_of(**config: Any) -> SpeechTiming:
    spec = ModelSpec("m", PipelineKind.STT, "stt", MIMI, generation={"stt_config": config})
    return SpeechTiming.of(spec)


def words_of(tokens: Sequence[int], delay_frames: int) -> list[WordEvent]:
    """What ``moshi::asr::State::step_tokens`` does, in seconds."""
    events: list[WordEvent] = []
    word: list[int] = []
    is_unended, last_stop_s, first = False, 0.0, 0
    for index, token in enumerate(tokens):
        step = index + 1
        if step < delay_frames:
            continue
        if token in (0, 3):
            if word:
                events.append(Word(spelled(word), last_stop_s, first, (step - delay_frames) * 0.08))
                word, is_unended = [], True
        else:
            first = first if word else index
            word.append(token)
        if token == 0:
            stop_s = (step - delay_frames) * 0.08
            if is_unended:
                events.append(WordEnd(stop_s))
                is_unended = False
            last_stop_s = stop_s
    return events


def rounded(events: Sequence[WordEvent]) -> list[WordEvent]:
    return [
        replace(event, start_s=round(event.start_s, 6), end_s=round(event.end_s, 6))
        if isinstance(event, Word)
        else WordEnd(round(event.stop_s, 6))
        for event in events
    ]


@given(st.lists(st.sampled_from([0, 0, 3, 3, 3, 5, 6, 7]), max_size=60), st.integers(1, 32))
def test_words_and_times_are_upstreams(tokens: list[int], delay_frames: int) -> None:
    timing = SpeechTiming(frame_s=0.08, delay_s=0.08 * delay_frames, prefix_frames=1)
    words = WordAssembler(timing, spelled)
    told = [event for token in tokens for event in words.feed(token)]
    assert rounded(told) == rounded(words_of(tokens, delay_frames))


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(0, 39))
def test_a_fork_goes_on_by_itself(tokens: list[int], at: int) -> None:
    def assembler() -> WordAssembler:
        return WordAssembler(timing_of(audio_delay_seconds=0.16), spelled)

    words, plain = assembler(), assembler()
    told = [event for token in tokens[:at] for event in words.feed(token)]
    fork = words.fork()
    for token in (5, 5, 0):
        fork.feed(token)
    told += [event for token in tokens[at:] for event in words.feed(token)]
    assert told == [event for token in tokens for event in plain.feed(token)]


@pytest.mark.parametrize(
    ("config", "prefix_frames", "delay_frames", "first_step"),
    [
        ({"audio_delay_seconds": 0.5, "audio_silence_prefix_seconds": 0.0}, 1, 7, 5),  # stt-1b-en_fr
        ({"audio_delay_seconds": 2.5, "audio_silence_prefix_seconds": 1.0}, 13, 32, 42),  # stt-2.6b-en
        ({"audio_delay_seconds": 0.48}, 2, 6, 6),  # no silence stated: the model hears one frame of it
        ({"audio_delay_seconds": 1}, 2, 13, 12),
        ({}, 2, 0, 0),
    ],
)
def test_the_published_times_become_frames(
    config: dict[str, Any], prefix_frames: int, delay_frames: int, first_step: int
) -> None:
    timing = timing_of(**config)
    assert (timing.prefix_frames, timing.delay_frames, timing.first_step) == (
        prefix_frames,
        delay_frames,
        first_step,
    )


def test_the_built_in_recogniser_hears_silence_before_its_caller() -> None:
    spec = load_checkpoint("tiny-stt").spec
    assert SpeechTiming.of(spec).prefix_frames == PREFIX_FRAMES == 2


@pytest.mark.parametrize("prefix_frames", [1, 2, 13])
def test_silence_before_the_audio_moves_no_time(prefix_frames: int) -> None:
    one = SpeechTiming(0.08, 0.5, 1)
    other = SpeechTiming(0.08, 0.5, prefix_frames)
    for frame in range(100):
        assert one.time_s(frame + 1) == pytest.approx(other.time_s(frame + prefix_frames))
        assert one.time_s(frame + 1) == pytest.approx(max(0.0, 0.08 * (frame + 2) - 0.5))


def test_what_is_said_before_the_audio_can_have_been_heard_is_no_word() -> None:
    words = WordAssembler(timing_of(audio_delay_seconds=2.5, audio_silence_prefix_seconds=1.0), spelled)
    assert [words.feed(token) for token in [0, 5, 0] * 14] == [[]] * 42
    assert words.feed(5) == []
    assert words.feed(0) == [Word("5", 0.0, 42, 0.06), WordEnd(pytest.approx(0.06))]  # type: ignore[arg-type]


def test_the_end_tells_what_is_left_and_ends_no_later_than_the_audio() -> None:
    words = WordAssembler(SpeechTiming(0.08, 0.0, 1), spelled)
    for token in (0, 5, 6):
        assert words.feed(token) == []
    assert words.is_in_word
    assert words.fork().finish(end_s=9.0) == [Word("5-6", 0.08, 1, 0.24), WordEnd(pytest.approx(0.24))]  # type: ignore[arg-type]
    assert words.finish(end_s=0.2) == [Word("5-6", 0.08, 1, 0.24), WordEnd(0.2)]
    assert words.finish(end_s=0.2) == []


def test_a_word_without_end_is_told_in_pieces() -> None:
    words = WordAssembler(SpeechTiming(0.08, 0.0, 1), spelled)
    told = [event for _ in range(2 * MAX_WORD_TOKENS) for event in words.feed(5)]
    assert [len(event.text.split("-")) for event in told if isinstance(event, Word)] == [MAX_WORD_TOKENS] * 2


def test_pieces_without_text_are_no_word() -> None:
    words = WordAssembler(SpeechTiming(0.08, 0.0, 1), lambda ids: "")
    assert [words.feed(token) for token in (5, 0)] == [[], []]


@pytest.mark.parametrize("value", [-0.1, 61.0])
def test_times_beyond_reason_are_refused(value: float) -> None:
    with pytest.raises(CheckpointFormatError, match=r"audio_delay_seconds is .*, it must be 0 to 60"):
        timing_of(audio_delay_seconds=value)


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(
        CheckpointFormatError, match=r"audio_silence_prefix_seconds is 'long', a number is needed"
    ):
        timing_of(audio_silence_prefix_seconds="long")
