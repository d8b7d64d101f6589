"""Full-size Mimi and an stt-1b language model as ONNX graphs, compared with upstream, for
``lab.bench.cpu_models``.

Weights are random, rings are full. Upstream computes Mimi in float32 and the LM in bfloat16, unchanged.
Graphs are exported once, which takes 6 GB of memory for the LM and 7 GB of the disk, and reused by later
runs; delete their folder after a change of the export.
"""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

from antiphon.backends.onnx.autotune import cut
from antiphon.backends.onnx.sessions import SplitSession
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon_quantize.onnx_export import export_stage
from antiphon_quantize.onnx_int8 import round_convolutions, round_rings
from antiphon_quantize.onnx_modules import DecodeStage, EncodeStage, ExportedStage, LanguageStage
from antiphon_quantize.onnx_weights import quantize_graph
from antiphon_quantize.recipe import Recipe, load_recipe
from lab.bench.harness import Values, tell
from lab.bench.onnx_graphs import GraphFile
from lab.bench.seeded_models import MODELS, Seeded, upstream_calls, upstream_model
from lab.bench.turns import take_turns

RECIPES = ("float32", "int8", "int4")
FORMS: Mapping[str, Sequence[str]] = {"mimi": RECIPES[:2], "lm": RECIPES[1:], "listener": RECIPES[1:2]}
"""The forms of each model that are measured."""
EXPORTS: Mapping[str, Sequence[str]] = {**FORMS, "listener": RECIPES[1:]}
"""The forms of each model that are exported: the two of a language model in every form take 10 GB more."""
UPSTREAM = "upstream"
SPINNING = " spinning"
"""Suffix of the names of forms whose threads keep their cores during a step."""
SPUN: Mapping[str, str] = {"mimi": "int8", "lm": "int4"}
"""The form of each model that is also measured with it."""
IN_PARTS = "int8 in parts"
"""INT8, a part of the rows on each thread."""
FRAME_MS = 80
REAL_TIME_FORM = "int8"
"""The form for which the sum of encoder and language model is reported."""

Calls: TypeAlias = dict[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Setting:
    """How graphs are measured: their folder, full size or small, the number of threads, and the number of
    rounds.

    With ``spin`` a form of each model is also measured on threads that spin.
    """

    graphs: Path
    size: str
    threads: int
    spin: bool
    turns: int

    def folder(self, model: str) -> Path:
        """Return the folder of a model's graphs, which are exported if necessary."""
        name = f"{model}-{self.size}"
        folder = self.graphs / name
        export(MODELS[name], folder, EXPORTS[model])
        return folder


def measure_model(model: str, rows: int, setting: Setting) -> Values:
    """Time one frame of ``rows`` rows, by upstream and by every form, alternately; also returns the bytes of
    files.

    With a language model: also its encoder.
    """
    folder, seeded = setting.folder(model), MODELS[f"{model}-{setting.size}"]
    with ExitStack() as stack:
        upstream = upstream_calls(upstream_model(seeded), seeded.stages, rows, stack)
        calls: Calls = {f"{UPSTREAM} {stage}": call for stage, call in upstream.items()}
        for form in (*FORMS[model], *([SPUN[model] + SPINNING] if setting.spin else [])):
            calls |= graph_calls(folder, form, seeded.stages, rows, setting)
        if model == "mimi" and 1 < setting.threads <= rows:
            calls |= calls_in_parts(folder, seeded.stages, rows, setting.threads, stack)
        if model == "lm":
            calls |= graph_calls(setting.folder("listener"), REAL_TIME_FORM, ("encode",), rows, setting)
        times = take_turns(calls, setting.turns)
    files = {
        recipe: sum(GraphFile.exported(folder, recipe, stage).bytes for stage in seeded.stages)
        for recipe in FORMS[model]
    }
    return {"times": times, "file_bytes": files}


def graph_calls(folder: Path, form: str, stages: Sequence[str], rows: int, setting: Setting) -> Calls:
    """Return for each stage a callable that computes one frame."""
    calls: Calls = {}
    for stage in stages:
        file = GraphFile.exported(folder, form.split()[0], stage)
        graph = file.rows(file.session(setting.threads, spin=form.endswith(SPINNING)), rows)
        calls[f"{form} {stage}"] = graph.prepare(range(rows))
    return calls


def calls_in_parts(folder: Path, stages: Sequence[str], rows: int, threads: int, stack: ExitStack) -> Calls:
    """Return for each stage a callable that computes one frame with its rows divided into one part per
    thread, as the server runs a small graph."""
    pool = stack.enter_context(ThreadPoolExecutor(threads - 1))
    calls: Calls = {}
    for stage in stages:
        file = GraphFile.exported(folder, IN_PARTS.split()[0], stage)
        session = file.session(1)
        graph = file.rows(session, rows, SplitSession(session, pool, threads))
        calls[f"{IN_PARTS} {stage}"] = graph.prepare_split(cut([range(rows)], threads))
    return calls


def export(seeded: Seeded, folder: Path, forms: Sequence[str]) -> None:
    """Export every stage by these recipes into ``folder/RECIPE/STAGE.onnx``, with its table as ``.json``.

    No effect if the folder exists.
    """
    if folder.is_dir():
        return
    part = folder.with_name(folder.name + ".part")
    recipes = {name: load_recipe("onnx", name) for name in forms}
    made_from = {name: _form(seeded, recipe) for name, recipe in recipes.items()}
    asked = list(made_from.values())
    for number, form in enumerate(form for index, form in enumerate(asked) if form not in asked[:index]):
        whole = part / f"whole-{number}"
        whole.mkdir(parents=True, exist_ok=True)
        for name, stage in seeded_stages(seeded, form):
            tell(f"exporting {folder.name} {name}")
            source = whole / f"{name}.onnx"
            table = json.dumps(asdict(export_stage(stage, source, name)))
            for recipe_name, recipe in recipes.items():
                if made_from[recipe_name] == form:
                    target = part / recipe_name / source.name
                    target.parent.mkdir(exist_ok=True)
                    quantize_graph(source, target, recipe)
                    target.with_suffix(".json").write_text(table)
        shutil.rmtree(whole)
    part.rename(folder)
    gc.collect()


def _form(seeded: Seeded, recipe: Recipe) -> Recipe:
    """The part of a recipe that changes the export: two recipes with equal parts are rounded from one
    graph."""
    plain = Recipe("", "", 0, (), (), {})
    if "lm" in seeded.stages:
        return replace(plain, int8_ring_bytes=recipe.int8_ring_bytes)
    return replace(plain, int8_convolution_positions=recipe.int8_convolution_positions)


def seeded_stages(seeded: Seeded, recipe: Recipe) -> Iterator[tuple[str, ExportedStage]]:
    """Yield each stage of a language model or of a Mimi, by name."""
    with torch.device("meta"):
        is_lm = "lm" in seeded.stages
        model = LanguageModel(seeded.config, steps=0) if is_lm else Mimi(seeded.config, seeded.codebooks)
    with_weights(model)
    if isinstance(model, LanguageModel):
        round_rings(model.transformer, recipe.int8_ring_bytes)
        yield "lm", LanguageStage(model.prepare())
        return
    round_convolutions(model, recipe.int8_convolution_positions)
    mimi = model.prepare()
    if "encode" in seeded.stages:
        yield "encode", EncodeStage(mimi)
    if "decode" in seeded.stages:
        yield "decode", DecodeStage(mimi, seeded.codebooks)


def with_weights(model: nn.Module) -> nn.Module:
    """Return the model with seeded weights that keep the level of signals."""
    torch.manual_seed(0)
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        if tensor.dim() > 1 and min(tensor.shape) > 1:
            tensor.normal_(0, tensor[0].numel() ** -0.5)
        else:
            tensor.fill_(1)
    return model


def render(attempts: Mapping[str, Values]) -> str:
    """Return a section in Markdown of the attempts called ``onnx MODEL ROWS``; empty if there are none."""
    lines = [line for key, found in attempts.items() if key.startswith("onnx ") for line in _rows(key, found)]
    if not lines:
        return ""
    about = "Upstream's Mimi in float32 and stt-1b step in bfloat16 compared with our graphs, rings full."
    head = "| | batch | form | ms | times as fast, by medians (by the bests) | MB of files |"
    lines = [head, "|---" * 6 + "|", *lines]
    return "\n\n".join(["## ONNX graphs", about, "\n".join(lines), *_real_time(attempts)])


def _rows(key: str, found: Values) -> Iterator[str]:
    _, model, batch = key.split()
    stages = MODELS[f"{model}-full"].stages
    name = "stt-1b step" if model == "lm" else "Mimi"
    parts = [stages] if len(stages) == 1 else [*((stage,) for stage in stages), stages]
    forms = [key.removesuffix(f" {stages[0]}") for key in found["times"] if key.endswith(f" {stages[0]}")]
    for part in parts:
        what = name if model == "lm" else f"{name} {' + '.join(part)}"
        what = f"**{what}**" if part == stages else what
        upstream = _total(found, UPSTREAM, part)
        for form in forms:
            ours = _total(found, form, part)
            faster = [before / after for before, after in zip(upstream, ours, strict=True)]
            files = found["file_bytes"].get(form) if part == stages else None
            megabytes = "" if files is None else f"{files / 1e6:.0f}"
            cells = [what, batch, form, f"{ours[0]:.1f}", f"{faster[0]:.2f} ({faster[1]:.2f})", megabytes]
            yield f"| {' | '.join(cells)} |"


def _total(found: Values, form: str, stages: Sequence[str]) -> tuple[float, float]:
    """Median and best of some stages together, in ms."""
    times = [found["times"][f"{form} {stage}"] for stage in stages]
    return sum(t["median_ms"] for t in times), sum(t["best_ms"] for t in times)


def _real_time(attempts: Mapping[str, Values]) -> Iterator[str]:
    """The time of a frame of speech recognition, if the encoder was measured together with the language
    model."""
    encode, lm = f"{REAL_TIME_FORM} encode", f"{REAL_TIME_FORM} lm"
    for key, found in attempts.items():
        if key.startswith("onnx lm") and encode in found["times"]:
            both_ms = sum(found["times"][stage]["median_ms"] for stage in (lm, encode))
            yield (
                f"Batch {key.split()[2]}: the stt-1b step and Mimi's encoder (the "
                f"{MODELS['listener-full'].codebooks} codebooks that it hears), both in {REAL_TIME_FORM}, "
                f"take {both_ms:.1f} of a frame's {FRAME_MS} ms."
            )
