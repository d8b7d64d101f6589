"""The gate on the torch backend: planted damage is found and named, intact models pass."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
import torch

from antiphon import cli
from antiphon.errors import ConfigError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon_quantize import gate, gate_run
from antiphon_quantize.gate import judge, limits_of
from antiphon_quantize.gate_limits import Verdict
from antiphon_quantize.gate_run import Material, Side
from antiphon_quantize.gate_sound import built_in_clips
from tests.quantize import planted
from tests.support.make_checkpoint import make_checkpoint

MATERIAL = Material(recordings=built_in_clips()[:3], frames=30, turns=1)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rounded(source: Path, out: Path) -> Checkpoint:
    """What the recipe int8 makes of a checkpoint."""
    line = ["quantize", "--no-gate", "--recipe", "int8", "--model", str(source), str(out)]
    assert cli.run(line) == 0
    return load_checkpoint(str(out))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Checkpoint]:
    """A model with biases on its logits, and what the recipe int8 makes of it."""
    folder = tmp_path_factory.mktemp("gate")
    source = make_checkpoint(folder / "source", bias_proj=True)
    return load_checkpoint(str(source)), rounded(source, folder / "int8")


def verdict_of(baseline: Checkpoint, candidate: Checkpoint) -> Verdict:
    limits = limits_of(candidate, "torch")
    return judge(Side(baseline, "torch"), Side(candidate, "torch"), limits, MATERIAL)


@pytest.fixture(scope="module")
def honest(pair: tuple[Checkpoint, Checkpoint]) -> Verdict:
    """The verdict on what the recipe int8 makes."""
    return verdict_of(*pair)


def failures(verdict: Verdict) -> dict[str, str]:
    """The measures whose limits were missed, and what is said of them."""
    return {row.measure.name: row.measure.detail for row in verdict.failed}


def values(verdict: Verdict) -> dict[str, float]:
    return {row.measure.name: row.measure.value for row in verdict.rows if row.measure.value is not None}


def test_a_copy_is_the_same_model(pair: tuple[Checkpoint, Checkpoint], tmp_path: Path) -> None:
    shutil.copytree(pair[0].root, tmp_path / "copy")
    verdict = verdict_of(pair[0], load_checkpoint(str(tmp_path / "copy")))
    assert verdict.passed
    found = values(verdict)
    streams = ["text", "semantic", *(f"acoustic {level}" for level in range(2, 9))]
    assert {found[f"{stream} kl"] for stream in streams} == {0}
    assert {found[f"{stream} agreement"] for stream in streams} == {1}
    assert found["weights change"] == found["text end of padding worst"] == 0
    assert found["memory ratio"] == found["size ratio"] == 1


def test_an_honest_int8_passes_and_is_seen_to_be_another(honest: Verdict) -> None:
    assert failures(honest) == {}
    found = values(honest)
    assert 0 < found["text kl"] < 0.001
    assert 0 < found["acoustic 8 kl"] < 0.003
    assert 0 < found["weights change"] < 0.01
    assert found["memory ratio"] < 0.8


@pytest.mark.parametrize(
    ("damage", "expected", "named"),
    [
        (planted.too_large, {"weights change", "text kl", "semantic kl", "acoustic 8 kl"}, ["(gain 1.10"]),
        (planted.swapped, {"weights change", "text kl"}, [planted.FIRST, planted.SECOND]),
        (planted.overflown, {"weights nonfinite", "logits nonfinite", "text kl"}, [planted.OVERFLOWING]),
    ],
    ids=["scales off by a tenth", "swapped scales", "overflow"],
)
def test_damage_to_weights_is_found_and_named(
    pair: tuple[Checkpoint, Checkpoint],
    tmp_path: Path,
    damage: Callable[[planted.Tensors], None],
    expected: set[str],
    named: list[str],
) -> None:
    verdict = verdict_of(pair[0], planted.damaged(pair[1], tmp_path / "damaged", damage))
    found = failures(verdict)
    assert expected <= found.keys()
    assert all(any(name in said for said in found.values()) for name in named)
    assert not verdict.passed


def test_a_shifted_logit_is_told_by_its_size_and_fails_nothing_else(
    pair: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    verdict = verdict_of(pair[0], planted.damaged(pair[1], tmp_path / "damaged", planted.biased))
    found = failures(verdict)
    assert found.keys() == {"weights change", "text end of padding shift"}
    assert found["weights change"].startswith("text_linear.bias")
    assert values(verdict)["text end of padding shift"] == pytest.approx(0.5, abs=0.03)


def test_a_delay_that_was_dropped_is_found_and_named(
    pair: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    verdict = verdict_of(pair[0], planted.without_delay(pair[1], tmp_path / "damaged"))
    found = failures(verdict)
    assert found["delays"].startswith("stream 2 has 0, not 1; stream 3 has 0, not 1")
    assert {"text kl", "semantic kl", "semantic agreement"} <= found.keys()


def test_a_listener_is_judged_by_its_text_and_its_pauses(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", kind="stt")
    before, after = load_checkpoint(str(source)), rounded(source, tmp_path / "int8")
    verdict = verdict_of(before, after)
    assert failures(verdict) == {}
    assert 0 < values(verdict)["pauses worst"] < 0.1

    def turned(tensors: planted.Tensors) -> None:
        tensors["extra_heads.2.weight"] = tensors["extra_heads.2.weight"].flip(0)

    found = failures(verdict_of(before, planted.damaged(after, tmp_path / "damaged", turned)))
    assert found.keys() >= {"pauses worst", "weights change"}
    assert found["pauses worst"] == "head 2"


def test_the_command_says_so_by_its_exit_code_and_in_json(
    pair: tuple[Checkpoint, Checkpoint],
    honest: Verdict,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = (str(checkpoint.root) for checkpoint in pair)
    clips, report = map(str, MATERIAL.recordings), tmp_path / "verdict.json"
    line = ["gate", a, b, "--backend", "torch", "--audio", *clips, "--frames", "30", "--turns", "1"]
    assert cli.run([*line, "--json", str(report), "--limit", "text kl<=1e-9"]) == 1
    said = capsys.readouterr()
    assert "text kl <= 1e-09: given on the command line" in said.out
    assert "loading source on torch" in said.err
    written = json.loads(report.read_text())
    failed = [row["measure"] for row in written["measures"] if row["verdict"] == "FAIL"]
    assert (written["passed"], failed) == (False, ["text kl"])
    monkeypatch.setattr(gate, "judge", lambda *arguments: honest)
    assert cli.run([*line, "--json", str(report)]) == 0
    assert "PASS: source-int8 on torch keeps" in capsys.readouterr().out
    assert json.loads(report.read_text())["passed"] is True


def test_large_models_are_held_one_at_a_time_and_measured_alike(
    pair: tuple[Checkpoint, Checkpoint], honest: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = values(honest)
    monkeypatch.setattr(gate_run, "TOGETHER_BYTES", 0)
    verdict = verdict_of(*pair)
    apart = values(verdict)
    timed = {"speed ratio"}
    assert {k: v for k, v in apart.items() if k not in timed} == {
        k: v for k, v in together.items() if k not in timed
    }
    details = {row.measure.name: row.measure.detail for row in verdict.rows}
    assert details["speed ratio"].endswith("one after the other")


def test_what_cannot_be_compared_is_said(pair: tuple[Checkpoint, Checkpoint], tmp_path: Path) -> None:
    echo, tts = load_checkpoint("echo"), make_checkpoint(tmp_path / "tts", kind="tts")
    with pytest.raises(ConfigError, match="source is duplex, echo is codec: they cannot be compared"):
        judge(Side(pair[0], "torch"), Side(echo, "torch"), (), MATERIAL)
    other = load_checkpoint(str(make_checkpoint(tmp_path / "other", text_card=200)))
    with pytest.raises(ConfigError, match="has text_card 256, other 200: they cannot be compared"):
        judge(Side(pair[0], "torch"), Side(other, "torch"), (), MATERIAL)
    speaker = load_checkpoint(str(tts))
    with pytest.raises(UnsupportedError, match="with a word-by-word script, on torch, not on mlx"):
        judge(Side(speaker, "torch"), Side(speaker, "mlx"), (), MATERIAL)
    with pytest.raises(UnsupportedError, match="reads the logits of torch, onnx, mlx, not of null"):
        judge(Side(pair[0], "null"), Side(pair[1], "null"), (), MATERIAL)


def gated(source: Path, out: Path, *options: str) -> int:
    """The exit code of ``antiphon quantize`` with its gate."""
    return cli.run(["quantize", "--model", str(source), str(out), *options])


def test_nothing_is_written_that_misses_a_limit_unless_it_is_accepted(
    pair: tuple[Checkpoint, Checkpoint],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "Material", lambda questions: replace(MATERIAL, questions=questions))
    recipe, out = tmp_path / "mine.toml", tmp_path / "out"
    ours = resources.files("antiphon_quantize").joinpath("recipes/torch-int8.toml").read_text()
    strict = '\n[[gate]]\nmeasure = "text kl"\nmost = 1e-9\nwhy = "nothing may change"\n'
    recipe.write_text(ours.partition("[[gate]]")[0] + strict)
    assert gated(pair[0].root, out, "--recipe", str(recipe)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
    said = capsys.readouterr()
    assert said.out == ""
    assert "text kl <= 1e-09: nothing may change" in said.err
    assert "misses 1 of" in said.err.splitlines()[-1]
    assert said.err.endswith("nothing was written (--accept-degradation writes it anyway)\n")
    assert gated(pair[0].root, out, "--recipe", str(recipe), "--accept-degradation") == 0
    assert load_checkpoint(str(out)).quantization_for("torch") is not None
    assert "FAIL" in capsys.readouterr().err


def test_what_cannot_be_judged_is_written_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_checkpoint(tmp_path / "source", kind="tts", dim=64)
    assert gated(source, tmp_path / "out", "--target", "mlx", "--recipe", "q8") == 0
    said = "not judged: the gate judges tts models with a word-by-word script, on torch, not on mlx"
    assert said in capsys.readouterr().err
    assert load_checkpoint(str(tmp_path / "out")).quantization_for("mlx") is not None
