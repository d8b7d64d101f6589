"""The tables of recipes and of cuts: every row is tried, none stops another, and cuts are what is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from antiphon.errors import ConfigError
from antiphon.models.catalog import load_checkpoint
from antiphon_quantize.gate_run import Material
from antiphon_quantize.gate_sound import built_in_clips
from antiphon_quantize.main import main as quantize
from antiphon_quantize.recipe import load_recipe
from lab.bench import cut_models, recipes
from lab.bench.cut_models import Plan, dropped, layers_of, missed, sparse, two_of_four, without_layers
from lab.bench.harness import BenchError, Results, Values
from lab.bench.recipes_report import measures_of
from tests.support.launch import ANTIPHON
from tests.support.make_checkpoint import make_checkpoint

MATERIAL = Material(recordings=built_in_clips()[:1], frames=12, turns=1)


def test_a_row_that_fails_says_why_and_only_it_is_tried_again(tmp_path: Path) -> None:
    tried: list[str] = []

    def part(name: str, error: Exception | None = None) -> Values:
        tried.append(name)
        if error is not None:
            raise error
        return {"fine": True}

    parts = {
        "a": lambda: part("a"),
        "b": lambda: part("b", BenchError("no room")),
        "c": lambda: part("c", ZeroDivisionError("oh")),
        "d": lambda: part("d"),
    }
    results = Results(tmp_path / "r.json", settings={}, resume=True)
    recipes.run(parts, results, lambda: 0.0)
    found = json.loads((tmp_path / "r.json").read_text())["attempts"]
    assert found == {
        "a": {"fine": True},
        "b": {"why": "no room"},
        "c": {"why": "ZeroDivisionError: oh"},
        "d": {"fine": True},
    }
    recipes.run(parts, Results(tmp_path / "r.json", settings={}, resume=True), lambda: 0.0)
    assert tried == ["a", "b", "c", "d", "b", "c"]


def test_every_recipe_of_the_package_has_a_row() -> None:
    rows = {row.name: row for row in recipes.all_rows(speed_only=False)}
    made = {(row.target, row.recipe) for row in rows.values() if row.recipe}
    folder = Path(recipes.__file__).parents[2] / "quantize" / "antiphon_quantize" / "recipes"
    ours = {tuple(path.stem.split("-", 1)) for path in folder.glob("*-*.toml")}
    assert made == ours
    assert rows["torch bfloat16"].options == {"dtype": "bfloat16"}
    assert rows["torch int8"].options == {}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """``antiphon quantize`` without a process of its own."""

    def measured(command: Sequence[str], log: Path) -> Values:
        assert command[: len(ANTIPHON) + 1] == [*ANTIPHON, "quantize"]
        try:
            code = quantize(command[len(ANTIPHON) + 1 :])
        except ConfigError as error:
            log.write_text(f"1/2 a line of progress\nantiphon: {error}\n")
            raise BenchError("ended with 2") from error
        assert code == 0
        return {"seconds": 1.0, "cpu_s": 1.0, "peak_bytes": 1e9, "said": ""}

    monkeypatch.setattr(recipes, "measured", measured)


@pytest.mark.usefixtures("in_this_process")
def test_a_model_of_its_own_is_timed_and_weighed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--speed-only", "--quick", "--only", "torch int8", "--turns", "2", "--work", str(tmp_path)]
    assert recipes.main([*line, "--out", str(tmp_path / "table")]) == 0
    found = json.loads((tmp_path / "table.json").read_text())["attempts"]["torch int8"]
    assert found["candidate"]["disk_bytes"] < found["baseline"]["disk_bytes"]
    assert found["candidate"]["memory_bytes"] < found["baseline"]["memory_bytes"]
    assert found["candidate"]["turns"] == found["baseline"]["turns"] == 2
    assert 0 < found["candidate"]["lm_ms"] < found["candidate"]["tick_ms"]
    assert "| torch int8 | 1 | 1.00 |" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stt-small", "table.json", "table.md"]


@pytest.mark.usefixtures("in_this_process")
def test_a_model_is_judged_and_a_recipe_that_cannot_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_checkpoint(tmp_path / "source")
    monkeypatch.setattr(recipes, "Material", lambda **given: MATERIAL)
    plenty = [
        recipes.Row("torch int8", "torch", "int8"),
        recipes.Row("torch odd", "torch", str(tmp_path / "no.toml")),
    ]
    monkeypatch.setattr(recipes, "all_rows", lambda speed_only: iter(plenty))
    monkeypatch.setattr(recipes, "load_recipe", lambda target, name: recipes_of_int8)
    line = [
        "--model",
        str(source),
        "--questions",
        "0",
        "--out",
        str(tmp_path / "t"),
        "--work",
        str(tmp_path / "w"),
    ]
    assert recipes.main(line) == 0
    said = capsys.readouterr().out
    assert "| recipe | text | semantic | acoustic 2 |" in said
    assert "- torch odd: antiphon: cannot read the recipe" in said
    assert "| torch int8 | - | - | - |" in said


@pytest.mark.parametrize("main", [recipes.main, cut_models.main])
def test_without_held_out_questions_nothing_is_begun(
    main: Callable[[Sequence[str]], int], tmp_path: Path
) -> None:
    line = ["--model", "tiny", "--questions-from", str(tmp_path / "none"), "--out", str(tmp_path / "t")]
    with pytest.raises(BenchError, match=r"none holds no questions \(\*\.npz\)") as refused:
        main(line)
    assert "lab.train.questions --held-out --shards 4 --out out/train/questions-test" in str(refused.value)
    assert "--codec FOLDER --out out/train/segments-test" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


recipes_of_int8 = load_recipe("torch", "int8")


def cut_plan(tmp_path: Path, source: Path) -> Plan:
    return Plan(load_checkpoint(str(source)), tmp_path / "work", MATERIAL)


def test_a_layer_that_does_nothing_is_not_missed(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", dtype="float32")
    tensors = load_file(source / "model.safetensors")
    for name in tensors:
        if name.startswith("transformer.layers.0.") and ("out_proj" in name or "linear_out" in name):
            tensors[name].zero_()
    save_file(tensors, source / "model.safetensors")
    plan = cut_plan(tmp_path, source)
    assert layers_of(plan.source) == [("transformer", 0), ("transformer", 1), ("depformer", 0)]
    idle, busy = (dropped(plan, [("transformer", layer)]) for layer in (0, 1))
    assert missed(idle) < 1e-6
    assert missed(busy) > 0.01
    assert measures_of(idle)["arguments"]["detail"] == "num_layers is 1, not 2"
    assert list(plan.work.iterdir()) == []
    results = Results(tmp_path / "r.json", settings={}, resume=False)
    results.values["attempts"] = {"idle": idle, "busy": busy}
    names = {"idle": ("transformer", 0), "busy": ("transformer", 1)}
    assert cut_models.least_missed(names, results, 1) == [("transformer", 0)]


def test_layers_behind_a_cut_close_up() -> None:
    names = [f"transformer.layers.{layer}.{part}" for layer in range(4) for part in ("a.weight", "b")]
    tensors = {name: torch.tensor(float(index)) for index, name in enumerate([*names, "out_norm.alpha"])}
    counts = without_layers([("transformer", 1), ("transformer", 2)], tensors, {"num_layers": 4})
    assert counts == {"num_layers": 2}
    values: dict[str, Any] = {name: float(tensor) for name, tensor in tensors.items()}
    assert values == {
        "transformer.layers.0.a.weight": 0.0,
        "transformer.layers.0.b": 1.0,
        "transformer.layers.1.a.weight": 6.0,
        "transformer.layers.1.b": 7.0,
        "out_norm.alpha": 8.0,
    }


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 5))
def test_two_of_four_weights_stay_and_they_are_the_larger(seed: int, rows: int, groups: int) -> None:
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, 4 * groups, generator=random)
    loudness = torch.rand(4 * groups, generator=random) + 0.1
    for loud in (None, loudness):
        cut = two_of_four(weight, loud)
        kept = (cut != 0).reshape(-1, 4)
        assert (kept.sum(dim=1) == 2).all()
        assert (cut[cut != 0] == weight[cut != 0]).all()
        size = (weight.abs() if loud is None else weight.abs() * loud).reshape(-1, 4)
        smallest_kept = size.masked_fill(~kept, torch.inf).amin(dim=1)
        assert (smallest_kept >= size.masked_fill(kept, 0).amax(dim=1)).all()


def test_every_matrix_of_a_layer_gets_its_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = built_in_clips()[:1]
    monkeypatch.setattr(cut_models, "built_in_clips", lambda: clip)
    source = make_checkpoint(tmp_path / "source", dtype="float32")
    plan = cut_plan(tmp_path, source)
    tensors = load_file(source / "model.safetensors")
    sparse(plan, tensors, listens=True)
    for name in (
        "transformer.layers.1.gating.linear_in.weight",
        "depformer.layers.0.self_attn.in_proj_weight",
    ):
        assert (tensors[name] != 0).float().mean() == 0.5
    assert (tensors["text_linear.weight"] != 0).all()
