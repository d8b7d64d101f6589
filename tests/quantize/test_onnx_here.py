"""``antiphon quantize --here``: the fastest graph of each stage, among finished graphs of one model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import cli
from antiphon.backends.base import StepInputs
from antiphon.backends.machine import cpu_name
from antiphon.backends.onnx.loading import stages
from antiphon.backends.registry import make_backend
from antiphon.errors import CheckpointFormatError, ConfigError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import GraphFormat
from antiphon.serve.hosting.engines import describe
from antiphon_quantize import onnx_here, onnx_target
from antiphon_quantize.bench.subject import quantization_words
from antiphon_quantize.onnx_here import GAIN, ROWS, Times, check_forms, choose_here, fastest
from antiphon_quantize.onnx_modules import ExportedStage
from tests.backends.onnx.exports import exported, exported_pocket, source

STAGES = ("encode", "lm", "depformer", "decode")


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    """The same small model in float32, and in 8 and 4 bits rounded of its float32 graphs."""
    folder, before = tmp_path_factory.mktemp("forms"), exported("moshi")

    def export_stage(stage: ExportedStage, path: Path, role: str) -> GraphFormat:
        shutil.copy(before.file(role), path)
        return next(graph for graph in before.graphs.values() if graph.file == role)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_target, "export_stage", export_stage)
        for recipe in ("int8", "int4"):
            line = ["--target", "onnx", "--recipe", recipe, "--model", source("moshi").ref]
            assert cli.run(["quantize", "--no-gate", *line, str(folder / recipe)]) == 0
    return [before, *(load_checkpoint(str(folder / recipe)) for recipe in ("int8", "int4"))]


def test_each_stage_is_its_fastest_graph(
    forms: list[Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"encode": 0, "lm": 2, "depformer": 1, "decode": 0}

    def time_stage(stage: str, of: Sequence[Checkpoint], *_: object) -> list[Times]:
        return [dict.fromkeys(ROWS, 1.0 if form == wanted[stage] else 2.0) for form in range(len(of))]

    monkeypatch.setattr(onnx_here, "time_stage", time_stage)
    out = tmp_path / "here"
    table = choose_here(forms, out, threads=1)
    assert [line.split()[1:3] for line in table.splitlines() if line.startswith("*")] == [
        ["encode", "float32"],
        ["lm", "int4"],
        ["depformer", "int8"],
        ["decode", "float32"],
    ]
    made = load_checkpoint(str(out))
    assert made.verify() == len(made.files)
    for stage, form in wanted.items():
        role = forms[form].graphs[stage].file
        assert made.graphs[stage] == forms[form].graphs[stage]
        assert made.file(role).read_bytes() == forms[form].file(role).read_bytes()
    words = "encode float32, lm int4, depformer int8, decode float32"
    manifest = json.loads((out / "antiphon.json").read_text())
    assert manifest["description"] == f"The fastest graphs on {cpu_name()}, 1 thread: {words}."
    backend = make_backend("onnx", made, slots=1, options={"threads": 1})
    assert quantization_words(made, backend.info).startswith(f"by stage: {words} (4 bits, ")
    assert backend.info.spec.name == f"{forms[0].spec.name}-here"
    line = describe("here", backend.info, made, cpu="AVX-512 VNNI")
    assert line.endswith(f"; by stage: {words}, chosen on {cpu_name()}, 1 thread")
    row, pcm = (
        np.zeros(1, np.int32),
        np.random.default_rng(0).normal(0, 0.1, (12, 1, 1920)).astype(np.float32),
    )
    sounds = [
        backend.step(StepInputs(row, np.array([turn == 0]), frame)).pcm for turn, frame in enumerate(pcm)
    ]
    assert all(sound is not None and np.isfinite(sound).all() for sound in sounds)


def test_one_form_that_is_fastest_everywhere_is_kept_whole(
    forms: list[Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_here, "time_stage", lambda *_: [{1: 1.0}, {1: 1.0}])
    choose_here(forms[:2], tmp_path / "here", threads=1)
    made = load_checkpoint(str(tmp_path / "here"))
    assert made.quantization_for("onnx") is None
    assert all(
        made.file(f"onnx.{stage}").read_bytes() == forms[0].file(f"onnx.{stage}").read_bytes()
        for stage in STAGES
    )


def test_graphs_that_share_state_are_chosen_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, "lm" of Pocket-TTS would stay with the first form."""
    even, slower = dict.fromkeys(ROWS, 1.0), dict.fromkeys(ROWS, 1.1)
    scripted = {"read": [{1: 4.0}, {1: 1.0}], "lm": [even, slower]}
    monkeypatch.setattr(onnx_here, "time_stage", lambda stage, *_: scripted.get(stage, [even, slower]))
    pocket = exported_pocket()
    lines = choose_here([pocket, pocket], tmp_path / "here", threads=1).splitlines()[2:]
    chosen = {line.split()[1]: which % 2 for which, line in enumerate(lines) if line.startswith("*")}
    assert chosen == dict.fromkeys(stages(pocket.spec), 0) | {"read": 1, "lm": 1}
    assert load_checkpoint(str(tmp_path / "here")).graphs == pocket.graphs


def test_the_command_line_times_all_forms(
    forms: list[Checkpoint], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, (first, *others) = tmp_path / "here", [form.ref for form in forms]
    assert cli.run(["quantize", "--here", *others, "--model", first, str(out)]) == 0
    title, head, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith(f"{out}: the fastest graphs on {cpu_name()}, ")
    assert head.split() == ["ms", "at", "rows", *map(str, ROWS)]
    cells = [line.lstrip("* ").split() for line in lines]
    assert [cell[:2] for cell in cells] == [[s, form] for s in STAGES for form in ("float32", "int8", "int4")]
    assert all(float(time) > 0 for cell in cells for time in cell[2:])
    starred = [line.split()[1] for line in lines if line.startswith("*")]
    assert starred == list(STAGES)
    assert load_checkpoint(str(out)).graphs.keys() == {*STAGES}


times = st.lists(st.floats(0.01, 100), min_size=4, max_size=4).map(
    lambda found: dict(zip(ROWS, found, strict=True))
)


@given(st.lists(st.lists(times, min_size=3, max_size=3), min_size=1, max_size=2))
def test_a_form_replaces_the_first_only_if_it_gains_more_than_noise(group: list[list[Times]]) -> None:
    means = [np.mean([np.log(time) for stage in group for time in stage[form].values()]) for form in range(3)]
    best = fastest(group)
    assert best == 0 or means[best] < means[0] + np.log(GAIN) + 1e-9
    assert all(means[best] <= mean + 1e-9 for mean in means) or min(means) > means[0] + np.log(GAIN) - 1e-9


def test_forms_of_different_models_are_refused(forms: list[Checkpoint]) -> None:
    with pytest.raises(ConfigError, match="a choice needs two folders or more"):
        check_forms(forms[:1])
    other = exported("stt")
    with pytest.raises(ConfigError, match=r"is not the model of .*: another shape, interface of a stage"):
        check_forms([forms[0], other])
    rounding = forms[2].manifest
    assert rounding is not None
    assert rounding.quantization is not None
    elsewhere = replace(rounding, quantization=replace(rounding.quantization, source_sha256="0" * 64))
    with pytest.raises(ConfigError, match=r"int8 and .*int4 were rounded from different weights"):
        check_forms([*forms[:2], replace(forms[2], manifest=elsewhere)])
    with pytest.raises(
        CheckpointFormatError, match=r"lacks the graphs encode, lm.*; make them: \S*antiphon quantize"
    ):
        check_forms([forms[0], source("moshi")])
