"""The parts of the gate: measures of logits, sources of limits, sound, questions, the table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.backends.base import FloatArray, StepInputs
from antiphon.errors import AudioError, CheckpointFormatError, ConfigError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.spec import LMSpec, PipelineKind
from antiphon.models.strict import read_record
from antiphon_quantize import gate, gate_sound
from antiphon_quantize.gate import limits_of
from antiphon_quantize.gate_limits import (
    Limit,
    Verdict,
    check_limits,
    common_limits,
    judge_measures,
    parse_limit,
    render,
    slower,
    to_json,
)
from antiphon_quantize.gate_measures import (
    Measure,
    log_softmax,
    measure_arguments,
    measure_logits,
    measure_tokens,
)
from antiphon_quantize.gate_run import Side, Ticker, in_one_dtype, measure_size, tick_times_ms
from antiphon_quantize.gate_sound import CodecOutput, Sound, built_in_clips, load_sound, measure_codec
from antiphon_quantize.gate_subject import (
    AFTER_FRAMES,
    BEFORE_FRAMES,
    Codes,
    EvalModel,
    Logits,
    Questions,
    StepCollector,
    read_questions,
)
from antiphon_quantize.recipe import load_recipe, recipe_names

LM = LMSpec(8, 1, 1, 8, n_q=4, dep_q=2, card=6, text_card=9, delays=(0, 0, 2, 0, 2))


def thoughts(seed: int, frames: int = 30) -> Logits:
    random = np.random.default_rng(seed)
    text, voice = random.normal(0, 2, (2, frames, 9)), random.normal(0, 2, (2, frames, 2, 6))
    return Logits(
        text.astype(np.float32), voice.astype(np.float32), random.random((2, frames, 0)).astype(np.float32)
    )


def said(seed: int, frames: int = 30) -> Codes:
    return np.random.default_rng(seed).integers(0, 6, (2, frames, 3))


def values(measures: Iterable[Measure]) -> dict[str, float]:
    """Of those that have one."""
    return {measure.name: measure.value for measure in measures if measure.value is not None}


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_divergence_is_none_from_oneself_and_some_from_another(seed: int) -> None:
    one, other, tokens = thoughts(seed), thoughts(seed + 1), said(seed)
    same, apart = (values(measure_logits(one, found, tokens, LM)) for found in (one, other))
    assert {same[f"{name} kl"] for name in ("text", "semantic", "acoustic 2")} == {0}
    assert {same[f"{name} agreement"] for name in ("text", "semantic", "acoustic 2")} == {1}
    assert same["text nll"] == same["text padding shift"] == same["text end of padding worst"] == 0
    assert apart["text kl"] > 0.1
    assert apart["acoustic 2 agreement"] < 0.6


def test_likelihood_and_divergence_are_those_of_the_textbook() -> None:
    one, other, tokens = thoughts(0), thoughts(1), said(2)
    p, q = (np.exp(log_softmax(part.text)) for part in (one, other))
    found = {measure.name: measure for measure in measure_logits(one, other, tokens, LM)}
    assert found["text kl"].value == pytest.approx((p * np.log(p / q)).sum(axis=-1).mean())
    likelihood = [-np.log(np.take_along_axis(part, tokens[:, :, :1], axis=2)).mean() for part in (p, q)]
    assert found["text nll"].baseline == pytest.approx(likelihood[0])
    assert found["text nll"].candidate == pytest.approx(likelihood[1])


def test_a_constant_on_all_logits_is_nothing_and_on_one_its_own_size() -> None:
    one = thoughts(0).text
    word = np.eye(one.shape[2], dtype=np.float32)[4]
    found = values(measure_tokens(one, one + 3, {"word": 4}))
    assert found["text word shift"] == pytest.approx(0, abs=1e-6)
    moved = values(measure_tokens(one, one + 0.5 * word, {"word": 4}))
    assert moved["text word shift"] == pytest.approx(0.5, abs=1e-5)


def test_frames_that_are_settled_do_not_hide_a_shift_in_those_that_are_open() -> None:
    word = np.eye(9, dtype=np.float32)[4]
    one = np.tile(thoughts(0).text * 0.5, (1, 20, 1))
    one[:, 30:300] -= 40 * word
    one[:, 300:] += 40 * word
    shifted, rounded = one + 0.5 * word, one.copy()
    rounded[:, 30:300] += 2 * word  # from nothing to nothing
    rounded[:, 300:] -= 2 * word  # from certain to certain
    found = {measure.name: measure for measure in measure_tokens(one, shifted, {"word": 4})}
    assert found["text word shift"].value == pytest.approx(0.5, abs=1e-5)
    assert found["text word shift"].detail == "likelier, give or take 0.00, in 60 frames"
    assert values(measure_tokens(one, rounded, {"word": 4}))["text word shift"] == pytest.approx(0, abs=1e-6)


def test_a_token_that_nobody_would_say_may_move() -> None:
    one = thoughts(0).text - np.eye(9, dtype=np.float32)[4] * 40
    found = {m.name: m for m in measure_tokens(one, one - 5 * np.eye(9, dtype=np.float32)[4], {"word": 4})}
    assert found["text word worst"].value == 0
    assert found["text word shift"].value is None
    assert found["text word shift"].detail == "the token is excluded or certain in every frame"


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_finite_misses_every_limit(broken: float) -> None:
    one, other = thoughts(0), thoughts(0)
    other.voice[1, 3, 1, 2] = broken
    rows = judge_measures(measure_logits(one, other, said(0), LM), common_limits())
    failed = {row.measure.name for row in rows if row.failed}
    streams = {f"acoustic 2 {what}" for what in ("nll", "kl", "agreement")}
    assert failed == {"logits nonfinite"} | streams
    nonfinite = next(row.measure for row in rows if row.measure.name == "logits nonfinite")
    assert nonfinite.detail == "acoustic 2"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("limit", [{"most": 1.0}, {"least": 1.0}, {"most": math.inf}, {"least": -math.inf}])
def test_no_limit_allows_what_is_not_finite_and_json_says_what_it_is(
    value: float, limit: dict[str, float]
) -> None:
    rows = judge_measures([Measure("a", value, value, 1.0)], [Limit("a", "x", **limit)])
    assert rows[0].word == "FAIL"
    verdict = Verdict("a on torch", "b on onnx", "1 recording", rows)
    told = json.loads(json.dumps(to_json(verdict), allow_nan=False))["measures"][0]
    assert (told["value"], told["baseline"], told["candidate"]) == (str(value), str(value), 1.0)
    assert {key: float(told["limit"][key]) for key in limit} == limit
    assert Limit("a", "x", **limit).allows(1.0)


@pytest.mark.parametrize(("step_ms", "is_told"), [(9.0, False), (10.4, False), (16.1, True)])
def test_a_candidate_that_is_slower_is_said_to_be(step_ms: float, is_told: bool) -> None:
    rows = judge_measures([measure_size("speed ratio", 10.0, step_ms, "ms a step")], common_limits())
    warning = slower(Verdict("a on torch", "b on torch", "1 recording", rows))
    assert (warning is not None) is is_told
    if warning is not None:
        assert warning.startswith(
            "slower: a step of b on torch takes 1.61 times as long here as one of a on torch "
            "(16.1 ms, not 10.0); it saves memory, not time"
        )


def test_thoughts_are_put_in_the_order_of_frames() -> None:
    collector, tokens = StepCollector(LM), np.arange(1, 2 * 4 * 3 + 1).reshape(2, 4, 3)
    for step in range(6):
        forced = collector.forced(tokens, step)
        frames = [step, step, step - 2]
        wanted = [[tokens[r, f, k] if 0 <= f < 4 else 0 for k, f in enumerate(frames)] for r in (0, 1)]
        assert forced.tolist() == wanted
        text = np.full((2, 9), step, np.float32)
        collector.add(text, np.full((2, 2, 6), step, np.float32), np.zeros((2, 0), np.float32))
    found = collector.logits()
    assert found.text[0, :, 0].tolist() == [0, 1, 2, 3]
    assert found.voice[0, :, 0, 0].tolist() == [0, 1, 2, 3]
    assert found.voice[0, :, 1, 0].tolist() == [2, 3, 4, 5]


def test_the_first_limit_that_names_a_measure_counts() -> None:
    limits = (Limit("text kl", "x", most=1), Limit("* kl", "y", most=0.1), Limit("*", "z", least=5))
    rows = judge_measures([Measure("text kl", 0.5), Measure("semantic kl", 0.5), Measure("a", None)], limits)
    assert [(row.word, row.failed) for row in rows] == [
        ("PASS", False),
        ("FAIL", True),
        ("not measured", False),
    ]
    assert judge_measures([Measure("a", 1)], ())[0].word == "-"


def test_limits_are_read_strictly_and_typed_plainly() -> None:
    assert parse_limit("text kl<=0.01") == Limit("text kl", "given on the command line", most=0.01)
    assert parse_limit("* agreement >= 9e-1").least == 0.9
    for text in ("text kl", "text kl<0.1", "<=3", "text kl<=e"):
        with pytest.raises(ConfigError, match=r"is no limit; one is written 'text kl<=0\.01'"):
            parse_limit(text)
    with pytest.raises(CheckpointFormatError, match="here: 'a' has neither 'most' nor 'least'"):
        check_limits([Limit("a", "b")], "here")
    with pytest.raises(CheckpointFormatError, match=r"here\.least is nan, a finite number is needed"):
        read_record(Limit, {"measure": "a", "why": "b", "least": math.nan}, "here")
    with pytest.raises(CheckpointFormatError, match="unknown key 'mots'"):
        read_record(Limit, {"measure": "a", "why": "b", "mots": 1}, "here")


def test_every_limit_of_ours_has_a_reason() -> None:
    recipes = [load_recipe(target, name) for target in ("torch", "onnx") for name in recipe_names(target)]
    for limit in (*common_limits(), *(limit for recipe in recipes for limit in recipe.gate)):
        assert len(limit.why) > 20, limit


def test_a_recipe_of_ours_brings_its_limits_and_another_gets_the_common_ones() -> None:
    checkpoint = load_checkpoint("tiny")
    manifest = checkpoint.manifest
    assert manifest is not None
    plain = replace(checkpoint, manifest=replace(manifest, quantization=None))
    assert limits_of(plain, "onnx") == common_limits()
    quantization = SimpleNamespace(options={"recipe": "int4"})
    made = replace(checkpoint, manifest=replace(manifest, quantization=cast("Any", quantization)))
    own = load_recipe("onnx", "int4").gate
    assert own
    assert limits_of(made, "onnx") == (*own, *common_limits())


def test_sound_is_whole_frames_with_silence_after_it(tmp_path: Path) -> None:
    mimi = load_checkpoint("echo").spec.mimi
    sound = load_sound(built_in_clips()[:2], mimi, 30)
    assert sound.pcm.shape == (2, 30 * 1920)
    assert sound.joined(sound.pcm).size == sound.frames.sum() * 1920
    empty = tmp_path / "empty.wav"
    empty.write_bytes(b"RIFF")
    with pytest.raises(AudioError, match=r"empty\.wav"):
        load_sound([empty], mimi, 30)


def test_a_codec_is_measured_where_there_is_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    pcm = load_sound(built_in_clips()[:1], load_checkpoint("echo").spec.mimi, 40)
    codes = np.zeros((1, 40, 8), np.int64)
    noisy = (pcm.pcm + np.random.default_rng(0).normal(0, 0.02, pcm.pcm.shape)).astype(np.float32)
    sound = Sound(pcm.pcm, np.minimum(pcm.frames, 30), pcm.frame_samples, pcm.rate)
    other = codes.copy()
    other[:, :3, 0] = 1
    other[:, 35:] = 7
    monkeypatch.setattr(gate_sound, "find_spec", lambda name: None)
    measures = list(
        measure_codec(sound, CodecOutput(codes, pcm.pcm, pcm.pcm), CodecOutput(other, noisy, noisy))
    )
    found = values(measures)
    assert found["codec semantic codes"] == pytest.approx(1 - 3 / sound.frames[0])
    assert 0 < found["codec si-sdr"] < 40
    assert found["codec stoi loss"] > 0.01
    assert found["codec mel loss"] > 1
    assert {measure.name for measure in measures} - found.keys() == {"codec pesq loss"}


def test_a_decoder_that_is_the_same_passes_as_a_number_and_one_that_is_silent_does_not() -> None:
    tone = np.sin(np.arange(4800) / 7).astype(np.float32)
    found = [gate_sound.measure_distortion(tone, other) for other in (tone, 0 * tone)]
    assert (found[0].value, found[1].value) == (gate_sound.MOST_SI_SDR_DB, -math.inf)
    assert found[0].detail == "dB, the decoder alone, no distortion at all, reported as 150"
    assert [row.word for row in judge_measures(found, common_limits())] == ["PASS", "FAIL"]


@pytest.mark.parametrize("part", ["spoken", "repeated"])
def test_a_codec_that_breaks_in_silence_alone_is_found(part: str) -> None:
    sound = load_sound(built_in_clips()[:1], load_checkpoint("echo").spec.mimi, 40)
    whole = CodecOutput(np.zeros((1, 40, 8), np.int64), sound.pcm, sound.pcm)
    broken = sound.pcm.copy()
    broken[0, -1] = np.nan
    damage: dict[str, Any] = {part: broken}
    found = values(measure_codec(sound, whole, replace(whole, **damage)))
    assert found["codec nonfinite"] > 0
    (row,) = judge_measures([Measure("codec nonfinite", found["codec nonfinite"])], common_limits())
    assert row.failed


def test_both_are_computed_in_one_dtype() -> None:
    checkpoint = load_checkpoint("echo")
    large, small, other = (
        Side(checkpoint, "torch", {"dtype": "bfloat16"}),
        Side(checkpoint, "torch", {"threads": 1}),
        Side(checkpoint, "onnx"),
    )
    assert [side.options for side in in_one_dtype(large, small)] == [
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "threads": 1},
    ]
    assert in_one_dtype(small, other) == (small, other)
    assert in_one_dtype(large, other)[1] == other


def test_what_nobody_understands_has_no_intelligibility_to_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = load_sound(built_in_clips()[:1], load_checkpoint("echo").spec.mimi, 40)
    noise = np.random.default_rng(0).normal(0, 0.1, sound.pcm.shape).astype(np.float32)
    heard = CodecOutput(np.zeros((1, 40, 8), np.int64), noise, noise)
    monkeypatch.setattr(gate_sound, "find_spec", lambda name: None)
    found = {measure.name: measure for measure in measure_codec(sound, heard, heard)}
    assert found["codec stoi loss"].value is None
    assert found["codec stoi loss"].detail.startswith("the baseline's own speech is not intelligible: ")
    assert found["codec mel loss"].value == 0


def test_pesq_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def pesq(rate: int, clean: FloatArray, other: FloatArray, band: str) -> float:
        assert (rate, band, len(clean)) == (16_000, "wb", len(other))
        if not other.any():
            raise ArithmeticError("no utterances")
        return 4 - float(np.abs(clean - other).max())

    package = SimpleNamespace(pesq=pesq, PesqError=ArithmeticError)
    monkeypatch.setattr(gate_sound, "find_spec", lambda name: object())
    monkeypatch.setattr(gate_sound, "import_module", lambda name: package)
    tone = np.sin(np.arange(4800) / 7).astype(np.float32)
    found = gate_sound.measure_pesq(tone, tone, 0.5 * tone, 24_000)
    assert found.baseline == 4
    assert found.value == pytest.approx(0.5, abs=0.02)
    silent = gate_sound.measure_pesq(tone, tone, 0 * tone, 24_000)
    assert (silent.value, silent.detail) == (None, "pesq: no utterances")


class Parrot:
    """Says the question's own first code when it is over, which is the right answer."""

    def __init__(self, errors: int) -> None:
        self.backend = SimpleNamespace(info=SimpleNamespace(slots=2))
        self._errors = errors

    def answer(self, input_codes: Codes, parameters: object) -> Codes:
        out = np.full((len(input_codes), input_codes.shape[1], 3), LM.text_padding_id)
        out[:, -2, 0] = LM.text_end_padding_id
        out[:, -1, 0] = input_codes[:, BEFORE_FRAMES, 0]
        if self._errors:
            self._errors -= 1
            out[0, -1, 0] = 0
        return out


class Numbers:
    """A tokenizer of numbers."""

    def encode(self, text: str) -> list[int]:
        return [int(text)]


def write_questions(folder: Path, answers: list[int]) -> None:
    """A shard of one-code questions in two scenes."""
    parts = [np.full((2, 3 + index), answer, np.int16) for index, answer in enumerate(answers)]
    np.savez(
        folder / "0000.npz",
        codes=np.concatenate(parts, axis=1),
        ends=np.cumsum([part.shape[1] for part in parts]),
        sizes=np.array([2, len(answers) - 2]),
        strips=np.zeros((2, 2, 50), np.int16),
        told=np.array(json.dumps([[0, 1, "?", str(answer)] for answer in answers])),
    )


def test_questions_are_asked_in_their_noise_and_marked_word_by_word(tmp_path: Path) -> None:
    write_questions(tmp_path, [4, 5, 6, 7, 8])
    questions: Questions = read_questions(tmp_path, LM, cast("Any", Numbers()), most=5)
    assert len(questions) == 5
    marks = [questions.mark(cast("EvalModel", Parrot(errors))) for errors in (0, 1, 2)]
    assert marks == [1.0, 0.8, 0.6]
    assert len(read_questions(tmp_path, LM, cast("Any", Numbers()), most=3)) == 3
    assert AFTER_FRAMES >= BEFORE_FRAMES


def test_questions_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no questions"):
        read_questions(tmp_path, LM, cast("Any", Numbers()), most=3)
    write_questions(tmp_path, [4, 5, 6])
    with pytest.raises(CheckpointFormatError, match="has 2 codebooks, the model takes 1"):
        read_questions(tmp_path, replace(LM, n_q=3), cast("Any", Numbers()), most=3)
    (tmp_path / "0001.npz").write_bytes(b"PK")
    with pytest.raises(CheckpointFormatError, match=r"0001\.npz is no shard of questions"):
        read_questions(tmp_path, LM, cast("Any", Numbers()), most=3)


def test_times_are_taken_by_turns_and_the_first_do_not_count() -> None:
    order: list[str] = []
    now = iter(range(10_000))

    class Backend:
        info = SimpleNamespace(spec=SimpleNamespace(frame_samples=2, kind=PipelineKind.CODEC))

        def __init__(self, name: str, costs: int) -> None:
            self.name, self.costs = name, costs

        def step(self, inputs: StepInputs) -> None:
            assert bool(inputs.reset[0]) == (self.name not in order)
            order.append(self.name)
            for _ in range(self.costs):
                next(now)

    pcm = np.zeros(6, np.float32)
    tickers = [
        Ticker(cast("Any", Backend(name, costs)), pcm, lambda: float(next(now)))
        for name, costs in (("a", 0), ("b", 4))
    ]
    assert tick_times_ms(tickers, 3) == [1000.0, 5000.0]
    assert order == ["a", "b"] * 8


def test_the_table_says_what_failed_and_why_and_json_has_no_nan() -> None:
    measures = [Measure("text kl", math.nan), Measure("size ratio", 0.5, 2, 1, "MB"), Measure("x", None)]
    rows = judge_measures(measures, [Limit("text kl", "too far", most=0.1)])
    verdict = Verdict("a on torch", "b on onnx", "1 recording", rows)
    text = render(verdict)
    line = next(line for line in text.splitlines() if line.startswith("text kl "))
    assert line.split() == ["text", "kl", "nan", "<=", "0.1", "FAIL"]
    assert text.endswith(
        "text kl <= 0.1: too far\nFAIL: b on onnx misses 1 of 1 limits compared with a on torch: text kl"
    )
    values = json.loads(json.dumps(to_json(verdict), allow_nan=False))
    assert values["passed"] is False
    assert values["measures"][0]["value"] == "nan"
    assert values["measures"][2]["value"] is None
    assert values["measures"][0]["limit"] == {"most": 0.1, "least": None, "why": "too far"}
    assert values["measures"][1] == {
        "measure": "size ratio",
        "value": 0.5,
        "baseline": 2,
        "candidate": 1,
        "detail": "MB",
        "limit": None,
        "verdict": "-",
    }


def test_a_tokenizer_that_only_one_side_has_is_counted() -> None:
    whole = load_checkpoint("tiny")
    bare = replace(whole, files={role: path for role, path in whole.files.items() if role != "tokenizer"})
    assert values(measure_arguments(whole, whole))["tokenizer"] == 0
    assert values(measure_arguments(whole, bare))["tokenizer"] == 1
    assert values(measure_arguments(bare, whole))["tokenizer"] == 1
    assert "tokenizer" not in values(measure_arguments(bare, bare))


def test_each_side_of_the_gate_has_the_options_of_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Side] = []

    def judge(one: Side, other: Side, *_: object) -> None:
        seen.extend((one, other))
        raise AudioError("judged")

    monkeypatch.setattr(gate, "judge", judge)
    sides = ["tiny", "tiny", "--backend-a", "torch", "--backend-b", "onnx"]
    given = ["--backend-option=onnx.spin=false", "--backend-option=threads=2"]
    own = ["--backend-option-b=kv=int4", "--backend-b=torch"]
    with pytest.raises(AudioError, match="judged"):
        gate.main([*sides, *given])
    assert [(side.backend, side.options) for side in seen] == [
        ("torch", {"threads": 2}),
        ("onnx", {"threads": 2, "spin": False}),
    ]
    with pytest.raises(AudioError, match="judged"):
        gate.main([*sides, *given, *own])
    assert seen[2] == seen[0]
    assert seen[3].options == {"threads": 2, "kv": "int4"}
    with pytest.raises(ConfigError, match="backend onnx has no option 'spinn'; did you mean 'spin'"):
        gate.main([*sides, "--backend-option=onnx.spinn=false"])
