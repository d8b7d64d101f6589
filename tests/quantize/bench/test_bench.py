"""``antiphon bench`` from its command line to its files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from antiphon import cli
from antiphon.config import ModelConfig
from antiphon.errors import ConfigError
from antiphon.models.catalog import builtin_folder
from antiphon.models.source import BUILTIN
from antiphon_quantize.bench.main import main
from antiphon_quantize.bench.options import make_subjects, parse_rows
from antiphon_quantize.bench.output import free_place
from tests.quantize.bench.fakes import read_card
from tests.quantize.bench.test_quality import verdict

MODELS = """
backend = "null"
[[models]]
model = "tiny"
name = "plain"
backend_option = ["step_ms=20"]
[[models]]
model = "tiny"
name = "small"
backend_option = ["step_ms=2"]
"""
QUICK = ["--seconds", "0.4", "--turns", "2", "--lead-frames", "1", "--rows", "2"]


def test_two_models_by_turns_and_a_gate_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models.toml").write_text(MODELS)
    Path("gate.json").write_text(json.dumps(verdict()))
    line = ["bench", "--config", "models.toml", "--baseline", "plain", "--quality", "gate.json", *QUICK]
    assert cli.run(line) == 1
    said = capsys.readouterr()
    assert said.out.split()[-3:] == ["out/card.md", "out/card.json", "out/card.png"]
    assert re.findall(r"^(plain|small) \(null, ", said.out, re.MULTILINE) == ["plain", "small"]
    assert re.search(r"^rows +tick p50 ms \(turns\) +p99 ms +max ms", said.out, re.MULTILINE)
    assert max(map(len, said.out.splitlines())) <= 80
    side = said.out.partition("side by side, 2 rows; speed, plain = 1\n")[2]
    assert [line.split()[0] for line in side.splitlines()[:3]] == ["model", "plain", "small"]
    assert "quality of plain: the baseline\nquality of small: gate failed against plain; " in side
    assert "**" not in said.out
    assert re.search(r"^2 +\d+\.\d\d \(", said.out, re.MULTILINE)
    assert re.findall(r"^turn (\d)/2, (\d) rows, (\w+): \d", said.err, re.MULTILINE) == [
        (turn, "2", label) for turn in "12" for label in ("plain", "small")
    ]
    card = read_card(Path("out/card.json"))
    assert card.command == "antiphon " + " ".join(line)
    assert (card.baseline, card.plan.rows, card.plan.turns) == ("plain", (2,), 2)
    plain, small = card.entries
    assert plain.quality is None
    assert small.quality is not None
    assert small.quality.baseline == "plain"
    for entry, step_ms in ((plain, 20.0), (small, 2.0)):
        assert entry.facts.model.name == "tiny"
        for result in entry.results:
            assert len(result.samples_ms) == 10
            assert step_ms <= result.p50_ms <= result.p95_ms <= result.p99_ms <= result.max_ms
        assert entry.memory.peak_rss > 20_000_000
    ratio = small.results[0].speed_ratio
    assert ratio is not None
    assert ratio.high > 1
    assert "# Benchmark card: plain, small" in Path("out/card.md").read_text()
    before = Path("out/card.md").read_text()
    assert free_place(Path("out/card")) == Path("out/card-2")
    Path("out/card-2.png").touch()
    assert free_place(Path("out/card")) == Path("out/card-3")
    assert cli.run(line) == 1
    assert capsys.readouterr().out.split()[-3:] == ["out/card-3.md", "out/card-3.json", "out/card-3.png"]
    assert Path("out/card.md").read_text() == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--rows", "one"], "rows = 'one' is no list of numbers such as 1,2,4"),
        (["--rows", "4,2"], r"rows \[4, 2\] must be ascending whole numbers from 1"),
        (["--turns", "0"], "turns = 0 is below 1"),
        (["--baseline", "other"], "baseline 'other' is none of the models measured: tiny"),
        (["--quality", "x.json"], "quality is given without baseline"),
        (["--model", "tiny"], "two models are called 'tiny on null'; give them names"),
        (["--config", "models.toml"], "model and config are both given"),
        (["--backend-option", "x"], "backend_option = 'x' is not NAME=VALUE"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is_loaded(
    line: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        main(["--model", "tiny", "--backend", "null", *line])


def test_models_are_told_apart_by_name_and_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = BUILTIN[0]
    Path("here").symlink_to(builtin_folder(name))
    entries = [
        ModelConfig(model=name, backend="null"),
        ModelConfig(model="here", backend="onnx", backend_option=("threads=1",)),
        ModelConfig(model="here", backend="onnx", name="mine"),
    ]
    one, other, named = make_subjects(entries)
    assert (one.model, other.model) == (name, str(builtin_folder(name).resolve()))
    assert [subject.label for subject in (one, other, named)] == [
        f"{name} on null",
        f"{name} on onnx",
        "mine",
    ]
    assert other.options == {"threads": 1}


def test_rows_are_numbers() -> None:
    assert parse_rows("1,2, 8") == (1, 2, 8)
    with pytest.raises(ConfigError, match="rows = '' is no list"):
        parse_rows("")


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for line, words in (
        (["--help"], "antiphon bench --model"),
        (["slots", "--help"], "antiphon bench slots"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(line)
        assert ended.value.code == 0
        assert words in capsys.readouterr().out
