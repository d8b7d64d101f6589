"""Gate reports in a card: parsing, notes for missing ones, assignment to models."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ConfigError, MissingExtraError, UnsupportedError
from antiphon_quantize.bench import options
from antiphon_quantize.bench.card import (
    PREFERRED,
    Quality,
    card_to_json,
    not_judged,
    quality_from_json,
    read_quality,
)
from antiphon_quantize.bench.options import QualitySource, run_gate
from antiphon_quantize.bench.output import quality_points, render
from antiphon_quantize.bench.subject import Subject
from antiphon_quantize.gate_limits import Limit, Row, Verdict, to_json
from antiphon_quantize.gate_measures import Measure
from antiphon_quantize.gate_run import Material
from antiphon_quantize.gate_sound import built_in_clips
from tests.quantize.bench.fakes import made_card
from tests.support.make_checkpoint import make_checkpoint

A, B, C = (Subject(label, "echo", "onnx", options={"threads": 1}) for label in "abc")


def verdict(**changes: Any) -> dict[str, Any]:
    measure = {
        "measure": "text agreement",
        "value": 0.5,
        "baseline": None,
        "candidate": None,
        "detail": "",
        "limit": {"most": None, "least": 0.9, "why": "because"},
        "verdict": "FAIL",
    }
    return {
        "baseline": "x",
        "candidate": "y",
        "material": "1 s",
        "passed": False,
        "measures": [measure],
        **changes,
    }


def no_gate(*_: Subject) -> Quality:
    raise UnsupportedError("the gate judges codec models, this is none")


def test_a_verdict_is_read() -> None:
    found = quality_from_json(verdict(), "a", "v.json")
    (metric,) = found.metrics
    assert (found.baseline, found.is_passed, found.material, found.note) == ("a", False, "1 s", "")
    assert (metric.score, metric.limit, metric.verdict) == (0.5, ">= 0.9", "FAIL")
    assert found.headline is metric
    assert not_judged("a", "why").headline is None


def test_the_best_measure_stands_for_all() -> None:
    (one,) = verdict()["measures"]
    names = [*reversed(list(PREFERRED)), "memory ratio"]
    measures = [{**one, "measure": name, "candidate": 0.25} for name in names]
    headline = quality_from_json(verdict(measures=measures), "a", "v").headline
    assert headline is not None
    assert (headline.name, headline.score) == ("answers loss", 0.25)
    measures[-2] = {**one, "measure": "answers loss", "value": None, "limit": None}
    headline = quality_from_json(verdict(measures=measures), "a", "v").headline
    assert headline is not None
    assert headline.name == "text agreement"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_damaged_models_verdict_goes_through_the_card_as_text(value: float) -> None:
    measure = Measure("text agreement", value, baseline=value, candidate=value)
    row = Row(measure, Limit("*", "", most=math.inf, least=-math.inf))
    told = json.dumps(to_json(Verdict("x", "y", "1 s", (row,))), allow_nan=False)
    found = quality_from_json(json.loads(told), "plain", "v.json")
    (metric,) = found.metrics
    assert str(metric.score) == str(metric.value) == str(metric.baseline) == str(value)
    assert (metric.limit, metric.verdict, found.is_passed) == (">= -inf <= inf", "FAIL", False)
    whole = made_card()
    card = replace(whole, entries=(whole.entries[0], replace(whole.entries[1], quality=found)))
    written = card_to_json(card)
    assert written.count(f'"{value}"') == 3
    assert json.loads(written)["entries"][1]["quality"]["metrics"][0]["value"] == str(value)
    assert f"| text agreement | {value} | {value} | {value} | >= -inf <= inf | FAIL |" in render(card)
    assert quality_points(card) == ("text tokens chosen as by the baseline", {})


@pytest.mark.parametrize("text", ["NaN", "infinity", "+inf", "1e3", " inf", ""])
def test_no_other_text_is_a_number(text: str) -> None:
    (one,) = verdict()["measures"]
    with pytest.raises(ConfigError, match="is no number"):
        quality_from_json(verdict(measures=[{**one, "value": text}]), "a", "v.json")
    with pytest.raises(ConfigError, match="is no number"):
        quality_from_json(verdict(measures=[{**one, "limit": {"most": text}}]), "a", "v.json")


@pytest.mark.parametrize("text", ["[]", "{}", '{"measures": [1]}', json.dumps(verdict(measures=[{"a": 1}]))])
def test_what_no_gate_wrote_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"v\.json is not what antiphon gate --json writes"):
        read_quality(path, "a")


def test_a_file_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*v\.json: No such file"):
        read_quality(tmp_path / "v.json", "a")
    (tmp_path / "v.json").write_text("{")
    with pytest.raises(ConfigError, match=r"v\.json is not JSON"):
        read_quality(tmp_path / "v.json", "a")


def test_files_are_in_the_order_of_the_models_without_the_baseline(tmp_path: Path) -> None:
    files = []
    for index, passed in enumerate((True, False)):
        path = tmp_path / f"{index}.json"
        path.write_text(json.dumps(verdict(passed=passed)))
        files.append(str(path))
    source = QualitySource(B, [A, B, C], files, no_gate)
    found = [source.quality(label) for label in "ac"]
    assert [quality and quality.is_passed for quality in found] == [True, False]
    with pytest.raises(ConfigError, match="1 files of quality for 2 models that are not the baseline"):
        QualitySource(B, [A, B, C], files[:1], no_gate)
    with pytest.raises(ConfigError, match="quality is given without baseline"):
        QualitySource(None, [A], files[:1], no_gate)


def test_without_files_the_gate_is_asked_and_may_say_no() -> None:
    asked = []

    def gate(candidate: Subject, baseline: Subject) -> Quality:
        asked.append((candidate.label, baseline.label))
        return not_judged(baseline.label, "")

    assert QualitySource(None, [A, B], [], gate).quality("a") is None
    assert QualitySource(B, [A, B], [], gate).quality("a") == not_judged("b", "")
    assert asked == [("a", "b")]
    note = QualitySource(B, [A, B], [], no_gate).quality("a")
    assert note == not_judged("b", "the gate judges codec models, this is none")

    def full(*_: Subject) -> Quality:
        raise MemoryError

    assert QualitySource(B, [A, B], [], full).quality("a") == not_judged("b", "MemoryError")


def test_the_gate_itself_is_found_and_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    little = partial(Material, recordings=built_in_clips()[:1], frames=20, turns=1)
    monkeypatch.setattr(options, "Material", little)
    folder = str(make_checkpoint(tmp_path / "small"))
    plain = Subject("plain", folder, "torch", "cpu", {"threads": 1})
    rounded = replace(plain, label="rounded", options={"threads": 1, "weights": "int8"})
    told: list[str] = []
    found = run_gate(rounded, plain, questions=None, tell=told.append)
    assert told
    assert found.baseline == "plain"
    assert found.is_passed == all(metric.verdict != "FAIL" for metric in found.metrics)
    assert found.headline is not None
    assert found.headline.name == "text agreement"
    assert 0 < (found.headline.score or 0) <= 1
    assert PREFERRED.keys() & {metric.name for metric in found.metrics} >= {"text agreement", "answers loss"}


def test_a_gate_that_lacks_a_module_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(*_: object) -> Verdict:
        raise ImportError("No module named 'onnx'", name="onnx")

    monkeypatch.setattr(options, "judge", judge)
    with pytest.raises(MissingExtraError, match=r"the quality gate needs .*onnx.*\[quantize\]'"):
        run_gate(A, B, questions=None, tell=lambda _: None)
