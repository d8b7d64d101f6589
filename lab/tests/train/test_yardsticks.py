"""The measures of natural voices and people: input for the models, and counts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from antiphon.arrays import FloatArray
from antiphon.audio.wav import write_wav
from lab.train import people, yardsticks
from lab.train.domain import NUMBERS, REFUSAL, Turn
from lab.train.ear import Count, Ear, in_words, words_wrong
from lab.train.material import Material
from lab.train.questions import Utterance
from lab.train.rows import FRAME_SAMPLES, Recogniser, Reply, Talker, Written
from lab.train.synthetic_voices import SAMPLE_RATE, Voice, speak
from lab.train.yardsticks import HEAD, PAUSES, Sets, answers, ask, long_tracks, pause_head, write_down

TELEPHONE_RATE = 8_000


def tone(seconds: float, hz: float = 300.0, rate: int = SAMPLE_RATE) -> FloatArray:
    return (0.3 * np.sin(2 * np.pi * hz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


@pytest.fixture
def material(tmp_path: Path) -> Material:
    """Tones for words: a number takes 0.2 s, and 10 ms more for each unit; a prompt takes two seconds."""
    english = tmp_path / "people" / "en"
    for folder in ("digits", "letters"):
        (english / folder).mkdir(parents=True)
    for number in range(len(NUMBERS)):
        sound = tone(0.2 + 0.01 * number, rate=TELEPHONE_RATE)
        write_wav(english / "digits" / f"{number}.wav", sound, TELEPHONE_RATE)
    write_wav(english / "letters" / "plus.wav", tone(0.5, rate=TELEPHONE_RATE), TELEPHONE_RATE)
    write_wav(english / "digits" / "minus.wav", tone(0.6, rate=TELEPHONE_RATE), TELEPHONE_RATE)
    prompts = {
        "busy": "All 5 circuits are busy.",
        "beep": "[a tone]",
        "hello": "Hello.",
        "long": "On and on.",
    }
    for name in prompts:
        write_wav(english / f"{name}.wav", tone(9.0 if name == "long" else 2.0), SAMPLE_RATE)
    lines = [f"{name}: {text}" for name, text in prompts.items()]
    (english / "texts.txt").write_text("\n".join(["; Sounds", "", *lines]))
    (tmp_path / "digits").mkdir()
    for speaker in ("ann", "bob"):
        for digit in range(10):
            sound = tone(0.3, rate=TELEPHONE_RATE)
            write_wav(tmp_path / "digits" / f"{digit}_{speaker}_0.wav", sound, TELEPHONE_RATE)
    return Material(tmp_path)


def said(text: str, seconds: float = 2.0, voice: str = "af_sarah", intent: str = "add") -> Utterance:
    return Utterance(Turn(intent, text, "", True), Voice("kokoro", voice), 1.0, tone(seconds))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("5 + 4 is 9.", "five plus four is nine"),
        ("Twelve - 2 = ten!", "twelve minus two is ten"),
        ("The color of an elephant is grey.", "the colour of an elephant is gray"),
        ("20, 30, 45, 100", "twenty thirty forty five one zero zero"),
        ("I don't know.", "i don't know"),
    ],
)
def test_what_the_ear_writes_is_put_into_the_domain_s_words(written: str, expected: str) -> None:
    assert in_words(written) == expected


def test_words_wrong_are_counted_beside_all_words() -> None:
    assert words_wrong(["two plus two", "milk is white"], ["two plus three", ""]) == Count(4, 6)
    assert words_wrong(["moo"], ["a lot of other words"]) == Count(1, 1)
    assert Count(4, 6).share == 0.6667
    assert Count(0, 0).share == 0.0


def test_the_ear_hears_at_its_own_rate_in_its_own_environment(tmp_path: Path) -> None:
    program = tmp_path / "ear" / "environment" / "bin" / "python"
    program.parent.mkdir(parents=True)
    texts = json.dumps(["3 + 4", "Snow."])
    program.write_text(f"#!/bin/sh\ncp $3 {tmp_path}/heard.npz\necho '{texts}'\n")
    program.chmod(0o755)
    assert Ear(Material(tmp_path)).hear([tone(0.5), tone(1.0)]) == ["three plus four", "snow"]
    with np.load(tmp_path / "heard.npz") as heard:
        sizes = [heard[name].size for name in heard.files]
    assert sizes == pytest.approx([8_000, 16_000], rel=0.05)  # a resampler adds its own tail


def test_a_person_s_numbers_are_joined_to_sums_and_differences(material: Material) -> None:
    asked = people.sums(material, 20)
    assert [one.turn.intent for one in asked] == ["add", "subtract"] * 10
    for one in asked:
        first, sign, second = one.turn.question.split()
        lasting = [0.2 + 0.01 * NUMBERS.index(word) for word in (first, second)]
        sign_s = {"plus": 0.5, "minus": 0.6}[sign]
        assert one.turn.answer.startswith(f"{one.turn.question} is ")
        starts = (0.0, lasting[0] + people.GAP_S, lasting[0] + sign_s + 2 * people.GAP_S)
        assert one.starts_s == pytest.approx(starts, abs=0.01)
        assert one.pcm.size / SAMPLE_RATE == pytest.approx(starts[2] + lasting[1], abs=0.01)
        assert one.voice.program == "recording"


def test_digits_are_four_in_a_row_by_each_speaker_in_turn(material: Material) -> None:
    asked = people.digits(material, 6)
    assert [one.voice.name for one in asked] == ["ann", "bob"] * 3
    assert all(len(one.turn.question.split()) == people.DIGITS_IN_A_ROW for one in asked)
    assert [one.turn for one in asked] == [one.turn for one in people.digits(material, 6)]


def test_prompts_have_words_fit_a_turn_and_ask_nothing_of_the_domain(material: Material) -> None:
    asked = people.prompts(material, ("en",), 1)
    assert [(one.turn.question, one.turn.answer) for one in asked] == [
        ("all five circuits are busy", REFUSAL)
    ]


def test_answers_add_up() -> None:
    def reply(text: str) -> Reply:
        return Reply(np.zeros(9, np.float32), tuple((0.1, word) for word in text.split()))

    turn = Turn("add", "one plus one", "one plus one is two", True)
    other = Turn("prose", "let us go", REFUSAL, True)
    asked = [
        Utterance(one, Voice("kokoro", "af_sarah"), 1.0, tone(0.1)) for one in (turn, turn, other, other)
    ]
    replies = [reply("one plus one is two"), reply(""), reply(REFUSAL), reply("snow is white")]
    assert answers(asked, replies) == {"of": 4, "right": 1, "wrong": 1, "refused": 1, "silent": 1}


def test_a_minute_of_speech_has_no_pause_and_the_same_words_with_some() -> None:
    asked = [said("two plus two"), said("snow", 1.5), said("milk", 2.0, "bm_fable")]
    for (text, pcm), (with_pauses, longer) in zip(
        long_tracks(asked, 0.0), long_tracks(asked, 1.0), strict=True
    ):
        assert text == with_pauses
        speech = pcm[SAMPLE_RATE : -2 * SAMPLE_RATE]
        assert speech.size >= 60 * SAMPLE_RATE
        quiet = np.flatnonzero(np.abs(speech) < 1e-3)
        assert np.diff(quiet, prepend=-1).min() > 0
        assert longer.size > pcm.size


class Doubting:
    """A recogniser with a high pause probability until a room's noise returns."""

    def __init__(self) -> None:
        self.tracks: list[FloatArray] = []

    def listen(self, tracks: Sequence[FloatArray]) -> list[Written]:
        self.tracks += tracks
        written = []
        for index, track in enumerate(tracks):
            pauses = np.full((track.size // FRAME_SAMPLES + 1, HEAD + 1), 0.7, np.float32)
            pauses[-10, HEAD] = 0.2 if index % 3 == 0 else 0.5
            written.append(Written((), pauses))
        return written


def test_the_pause_head_is_looked_at_where_a_room_comes_back_after_zeros() -> None:
    doubting = Doubting()
    asked = [said("two plus two") for _ in range(PAUSES)]
    report = pause_head(cast("Recogniser", doubting), asked)
    assert report == {"of": 21, "above": 14, "median_before": 0.7, "median_least": 0.5}
    for track in doubting.tracks:
        back = track.size - int(yardsticks.AFTER_S * SAMPLE_RATE)
        zeros = track[back - int(yardsticks.ZEROS_S * SAMPLE_RATE) : back]
        assert not zeros.any()
        for room in (track[back:], track[: SAMPLE_RATE // 2]):
            level_db = 20 * np.log10(float(np.sqrt(np.mean(room**2))))
            assert level_db == pytest.approx(yardsticks.ROOM_DB, abs=6)


class Parrot:
    """A talker and recogniser that always returns "two plus two"."""

    def listen(self, tracks: Sequence[FloatArray]) -> list[Reply]:
        words = tuple((0.2 * place, word) for place, word in enumerate(["two", "plus", "two"]))
        return [Reply(track, words) for track in tracks]

    def hear(self, clips: Sequence[FloatArray]) -> list[str]:
        return ["two plus three"] * len(clips)


class Scribe:
    """Writes "two plus two" of everything."""

    def listen(self, tracks: Sequence[FloatArray]) -> list[Written]:
        words = tuple((0.2 * place, word) for place, word in enumerate(["two", "plus", "two"]))
        return [
            Written(words, np.zeros((track.size // FRAME_SAMPLES + 1, HEAD + 1), np.float32))
            for track in tracks
        ]


def test_every_figure_states_what_it_is_out_of() -> None:
    turn = Turn("add", "two plus two", "two plus two", True)
    one = Utterance(turn, Voice("kokoro", "af_sarah"), 1.0, tone(1.0))
    outside = Utterance(Turn("recording", "", REFUSAL, True), Voice("recording", "en"), 1.0, tone(2.0))
    sets = Sets([one, one], [one], [one], {"person": [outside], "natural": [outside, outside]})
    ear = cast("Ear", Parrot())
    said = ask(cast("Talker", Parrot()), sets, ear)
    right = {"of": 2, "right": 2, "wrong": 0, "refused": 0, "silent": 0}
    assert said["natural"] == said["first_sample"] == said["natural_by_language"]["en-us"] == right
    assert said["outside"]["natural"] == {"of": 2, "right": 0, "wrong": 2, "refused": 0, "silent": 0}
    assert said["spoken"] == {"answers": 2, "words_wrong": 2, "of": 6, "share": 0.3333}
    scribe = cast("Recogniser", Scribe())
    written = write_down(scribe, scribe, sets, ear)
    assert written["natural"] == {"tracks": 2, "empty": 0, "words_wrong": 0, "of": 6, "share": 0.0}
    for name in ("sums", "digits", "first_sample", "first_sample_without_prefix"):
        assert written[name]["share"] == 0.0
    assert written["outside"] == {"person": {"of": 1, "silent": 0}, "natural": {"of": 2, "silent": 0}}
    assert written["without_a_pause"]["of"] == written["with_pauses"]["of"] == 180
    assert written["pause_head"]["of"] == 2
    assert written["ear"] == {"natural": 0.3333, "sums": 0.3333, "digits": 0.3333}


def test_a_recogniser_in_this_process_writes_what_is_said() -> None:
    question = "what is two plus three"
    one = Utterance(
        Turn("add", question, "", True), Voice("flite", "slt"), 1.0, speak(Voice("flite", "slt"), question)
    )
    written = Recogniser("tiny-stt", "onnx", rows=2).listen([yardsticks.alone(one, listen_s=2.0)] * 3)
    assert [got.text for got in written] == [question] * 3
    starts = [start for start, _ in written[0].words]
    assert starts == sorted(starts)
    assert 1.0 < starts[0] < 1.6
    assert written[0].pauses.shape[1] == 4
