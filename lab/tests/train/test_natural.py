"""Natural speech: the requested questions, their phonemes, their shards. A graph of noise replaces
Kokoro's."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lab.train import natural
from lab.train.domain import Turn
from lab.train.kokoro import STEP_SAMPLES, STYLES, Kokoro, phonemes, spoken_together
from lab.train.material import DURATIONS, Material
from lab.train.natural import HIBARI_SHARE, LIST, MIXES, RECOGNISER, SHORT, SPEEDS, Planner, spoken
from lab.train.outside import ABROAD
from lab.train.questions import read_shard
from lab.train.synthetic_voices import SAMPLE_RATE, Voice
from lab.train.word_times import Listener
from tests.support.ask import QUESTIONS

LASTING = 4
"""Steps of every phoneme in the graph below."""


@pytest.fixture
def kokoro(tmp_path: Path) -> Kokoro:
    """A graph with Kokoro's inputs and outputs: every phoneme lasts 100 ms, as loud as its number."""
    (tmp_path / "voices").mkdir()
    for name in ("af_heart", "am_adam", "bf_emma", "hf_alpha"):
        np.zeros(STYLES, np.float32).tofile(tmp_path / "voices" / f"{name}.bin")
    letters = {
        letter: 1 + place for place, letter in enumerate(", ɹæbcdefhijklmnopstuvwzɑəɛɪʊʌˈˌAIOWYɡŋðθʃʤʧɔɒ")
    }
    (tmp_path / "symbols.json").write_text(json.dumps(letters))
    values = {
        "ones": np.full((1, LASTING * STEP_SAMPLES), 1e-3, np.float32),
        "column": np.array([-1, 1]),
        "flat": np.array([-1]),
        "lasting": np.array(float(LASTING), np.float32),
    }
    nodes = [
        helper.make_node("Cast", ["tokens"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["numbers", "column"], ["column_of"]),
        helper.make_node("MatMul", ["column_of", "ones"], ["loud"]),
        helper.make_node("Reshape", ["loud", "flat"], ["audio"]),
        helper.make_node("Sub", ["numbers", "numbers"], ["nothing"]),
        helper.make_node("Add", ["nothing", "lasting"], [DURATIONS]),
    ]
    inputs = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, None]),
        helper.make_tensor_value_info("style", TensorProto.FLOAT, [1, 256]),
        helper.make_tensor_value_info("speed", TensorProto.FLOAT, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info("audio", TensorProto.FLOAT, [None]),
        helper.make_tensor_value_info(DURATIONS, TensorProto.FLOAT, [None, None]),
    ]
    graph = helper.make_graph(
        nodes, "noise", inputs, outputs, [numpy_helper.from_array(*pair[::-1]) for pair in values.items()]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        tmp_path / "model.onnx",
    )
    return Kokoro(tmp_path)


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("what is five plus four", "en-us", "wˌʌt ɪz fˈIv plˈʌs fˈɔɹ"),
        ("which day is it", "en-gb", "wˌɪʧ dˈA ɪz ɪt"),
        ("the colour of the sky", "en-gb", "ðə kˈʌləɹ ɒvðə skˈI"),
        ("où est la gare", "fr-fr", "u ɛ la ɡˈaʁ"),
    ],
)
def test_phonemes_are_in_kokoro_s_alphabet(text: str, language: str, expected: str) -> None:
    assert phonemes(text, language).replace("-", "") == expected


def test_words_that_are_spoken_together_are_found() -> None:
    words = ["the", "colour", "of", "the", "sky"]
    assert spoken_together(words, phonemes(" ".join(words), "en-gb").split(), "en-gb") == [1, 1, 2, 1]
    assert spoken_together(words, ["ð", "k"], "en-gb") == []


def test_each_word_starts_where_its_first_phoneme_does(kokoro: Kokoro) -> None:
    said = kokoro.speak(Voice("kokoro", "af_heart"), "two plus two")
    lengths = [len(part) for part in phonemes("two plus two", "en-us").split()]
    assert lengths[0] == lengths[2]
    step_s = LASTING * STEP_SAMPLES / SAMPLE_RATE
    first, second = 1 + lengths[0] + 1, 1 + lengths[0] + 1 + lengths[1] + 1
    assert said.starts_s == pytest.approx((step_s, first * step_s, second * step_s))
    assert said.pcm.size == (2 + sum(lengths) + 2) * LASTING * STEP_SAMPLES


def test_words_spoken_together_share_their_time_by_their_letters(kokoro: Kokoro) -> None:
    starts = kokoro.speak(Voice("kokoro", "bf_emma"), "colour of the sky").starts_s
    assert len(starts) == 4
    assert (starts[2] - starts[1]) / (starts[3] - starts[1]) == pytest.approx(2 / 5)


def test_a_list_has_commas_between_its_words(kokoro: Kokoro, tmp_path: Path) -> None:
    joined = kokoro.speak(Voice("kokoro", "af_heart"), "two four")
    listed = kokoro.speak(Voice("kokoro", "af_heart"), "two four", ", ")
    step_samples = LASTING * STEP_SAMPLES
    assert listed.pcm.size - joined.pcm.size == step_samples
    assert listed.starts_s[1] - joined.starts_s[1] == pytest.approx(step_samples / SAMPLE_RATE)


def test_a_share_of_training_is_lists_and_none_of_the_tests() -> None:
    rng, planner = random.Random(2), Planner()
    lists = [turn for turn, _ in (planner.draw(rng) for _ in range(400)) if turn.intent == LIST]
    assert len(lists) / 400 == pytest.approx(RECOGNISER.lists, abs=0.04)
    assert {len(turn.question.split()) for turn in lists} == {1, 2, 3, 4, 5}
    assert not any(turn.answer for turn in lists)
    held_out = Planner(held_out=True)
    assert LIST not in {held_out.draw(rng)[0].intent for _ in range(100)}


def test_a_talker_s_training_has_no_lists_and_fewer_random_words() -> None:
    rng, planner = random.Random(6), Planner(mix=MIXES["talker"])
    turns = [planner.draw(rng)[0] for _ in range(400)]
    unanswered = sum(not turn.answer for turn in turns)
    assert LIST not in {turn.intent for turn in turns}
    assert unanswered / 400 == pytest.approx(MIXES["talker"].words, abs=0.04)


def test_short_questions_are_the_page_s_and_some_like_them_in_one_engine_s_voices() -> None:
    rng, planner = random.Random(5), Planner(mix=SHORT, hibari_share=0.0)
    drawn = [planner.draw(rng) for _ in range(200)]
    answers = {turn.question: turn.answer for turn, _ in drawn}
    assert set(answers) == set(SHORT.questions)
    assert answers.items() >= {words.lower(): answer for words, answer in QUESTIONS.values()}.items()
    assert {voice.program for _, voice in drawn} == {"kokoro"}


def test_sums_are_said_word_by_word() -> None:
    rng, planner = random.Random(7), Planner(mix=MIXES["sums"])
    turns = [planner.draw(rng)[0] for _ in range(50)]
    assert {turn.intent for turn in turns} == {LIST}
    assert {turn.question.split()[1] for turn in turns} == {"plus", "minus"}
    assert all(turn.answer.startswith(f"{turn.question} is ") for turn in turns)


def test_hibari_speaks_three_quarters_of_the_english_turns_of_training_in_two_accents() -> None:
    rng, planner = random.Random(3), Planner()
    drawn = [planner.draw(rng) for _ in range(400)]
    english = [voice for turn, voice in drawn if turn.intent != ABROAD]
    quick = [voice for voice in english if voice.program == "hibari"]
    assert len(quick) / len(english) == pytest.approx(HIBARI_SHARE, abs=0.06)
    assert {voice.name for voice in quick} == {"en-us", "en-gb"}
    assert all(voice.throat is not None for voice in quick)
    assert {voice.program for turn, voice in drawn if turn.intent == ABROAD} == {"kokoro"}


def test_a_voice_that_is_not_there_is_named(kokoro: Kokoro) -> None:
    with pytest.raises(ValueError, match=r"^Kokoro has no voice xx_nobody$"):
        kokoro.speak(Voice("kokoro", "xx_nobody"), "two")
    with pytest.raises(ValueError, match=r"^0 phonemes in ' ', it must be 1 to 509$"):
        kokoro.speak(Voice("kokoro", "af_heart"), " ")


def test_a_turn_begins_with_its_first_sound_and_is_as_loud_as_any(kokoro: Kokoro) -> None:
    one = spoken(kokoro, Turn("words", "two plus two", "", False), Voice("kokoro", "af_heart+am_adam"))
    assert one.starts_s[0] == 0.0
    assert float(np.sqrt(np.mean(one.pcm**2))) == pytest.approx(natural.LOUDNESS, rel=1e-3)


def test_a_shard_is_a_seed_and_tells_when_words_start(
    kokoro: Kokoro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = [
        (Turn("add", "two plus two", "two plus two is four", False), Voice("kokoro", "af_heart", 200)),
        (Turn(ABROAD, "nˈa", "what do you say", False), Voice("kokoro", "hf_alpha")),
    ]
    monkeypatch.setattr(Planner, "draw", lambda self, rng: drawn[int(rng.random() < 0.5)])
    seconds = [
        natural.make_shard(tmp_path / f"{name}.npz", 3, {"kokoro": kokoro}, planner=Planner(), utterances=6)
        for name in "ab"
    ]
    assert seconds[0] == seconds[1]
    read = read_shard(tmp_path / "a.npz")
    assert len(read) == 6
    assert {one.turn.intent for one in read} == {"add", ABROAD}
    times = [Listener().times(one) for one in read]
    for one, told in zip(read, times, strict=True):
        assert told.starts_s == (one.starts_s if one.turn.intent == "add" else ())
        assert told.seconds == one.pcm.size / SAMPLE_RATE


def test_natural_voices_keep_to_their_speeds() -> None:
    rng, planner = random.Random(1), Planner()
    paces = [planner.draw(rng)[1].of_its_own[0] for _ in range(300)]
    assert SPEEDS[0] <= min(paces) < 0.85
    assert 1.25 < max(paces) <= SPEEDS[1]


def test_material_that_is_not_there_is_named_with_the_command_that_gets_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^no kokoro in .*; get it with: python -m lab\.train\.material"):
        _ = Material(tmp_path).kokoro
