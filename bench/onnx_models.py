"""Full-size Mimi and an stt-1b language model as ONNX graphs beside upstream, for ``bench.cpu_models``.

Weights are random, rings are full. Upstream computes Mimi in float32 and the LM in bfloat16, as it comes.
Graphs are exported once, which takes 6 GB of memory for the LM and as much of the disk, and found again by
later runs; after a change of the export their folder wants deleting.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import torch
from torch import nn

from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.sessions import open_session, pick_provider
from antiphon.backends.torch.lm import LanguageModel
from antiphon.backends.torch.mimi import Mimi
from antiphon.models import defaults
from antiphon.models.graphs import graph_from_json, graph_to_json
from antiphon_quantize.onnx_export import export_stage
from antiphon_quantize.onnx_modules import DecodeStage, EncodeStage, LanguageStage, Stage
from antiphon_quantize.onnx_weights import quantize_graph
from antiphon_quantize.recipe import load_recipe
from bench.harness import Values, tell
from bench.seeded_models import STT_1B, make_lm, upstream_mimi
from bench.turns import take_turns

RECIPES = ("float32", "int8", "int4")
UPSTREAM = "upstream"
CODEBOOKS = 8
LONG_AGO = 100_003
"""A position behind every ring's wrap."""
FRAME_MS = 80
REAL_TIME_FORM = "int8"
"""The form whose sum of encoder and language model is told."""

Calls: TypeAlias = dict[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Form:
    """How graphs are measured: where they lie, on how many threads, which may spin, and how many turns."""

    graphs: Path
    threads: int
    spin: bool
    turns: int


def measure_mimi(config: Mapping[str, Any] | None, rows: int, form: Form) -> Values:
    """Encode and decode one frame for ``rows`` rows; ``config`` None is the full-size Mimi."""
    folder = form.graphs / ("mimi-full" if config is None else "mimi-small")
    export(defaults.MIMI_CONFIG if config is None else config, folder)
    upstream, memory_bytes = growth(lambda: upstream_mimi(CODEBOOKS, config))
    pcm = torch.randn(rows, 1, upstream.frame_size) * 0.1
    with upstream.streaming(rows):
        codes = upstream.encode(pcm)
        calls: Calls = {
            f"{UPSTREAM} encode": lambda: upstream.encode(pcm),
            f"{UPSTREAM} decode": lambda: upstream.decode(codes),
        }
        return measure(calls, memory_bytes, folder, ("float32", "int8"), ("encode", "decode"), rows, form)


def measure_lm(config: Mapping[str, Any], rows: int, form: Form) -> Values:
    """One step of the temporal transformer for ``rows`` rows, beside upstream's in bfloat16."""
    size = "full" if config["dim"] == STT_1B["dim"] else "small"
    folder = form.graphs / f"lm-{size}-{config['num_layers']}"
    export(config, folder)
    upstream, memory_bytes = growth(lambda: make_lm(config, torch.bfloat16))
    tokens = torch.randint(upstream.card, (rows, 1 + config["n_q"], 1))
    with upstream.streaming(rows):
        calls: Calls = {f"{UPSTREAM} lm": lambda: upstream.forward_text(tokens)}
        return measure(calls, memory_bytes, folder, ("int8", "int4"), ("lm",), rows, form)


def measure(
    calls: Calls,
    memory_bytes: int,
    folder: Path,
    recipes: Sequence[str],
    stages: Sequence[str],
    rows: int,
    form: Form,
) -> Values:
    """Upstream's calls and the graphs' by turns, memory (without what steps take) and files beside."""
    memory = {UPSTREAM: memory_bytes}
    files = {}
    for recipe in recipes:
        open_graphs = partial(graph_calls, folder, recipe, stages, rows, form)
        graphs, memory[recipe] = growth(open_graphs)
        calls |= graphs
        files[recipe] = sum(p.stat().st_size for s in stages for p in (folder / recipe).glob(f"{s}.onnx*"))
    times = take_turns(calls, form.turns)
    return {"times": times, "memory_bytes": memory, "file_bytes": files}


def growth(make: Callable[[], Any]) -> tuple[Any, int]:
    """What ``make`` makes, and the bytes that this process grew by."""
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    made = make()
    gc.collect()
    return made, process.memory_info().rss - before


def graph_calls(folder: Path, recipe: str, stages: Sequence[str], rows: int, form: Form) -> Calls:
    """A frame of each stage, each of which has run once."""
    graphs = {f"{recipe} {stage}": open_graph(folder, recipe, stage, rows, form) for stage in stages}
    for graph in graphs.values():
        graph.run(rows)
    return {name: partial(graph.run, rows) for name, graph in graphs.items()}


def open_graph(folder: Path, recipe: str, stage: str, rows: int, form: Form) -> Graph:
    """A graph of ``rows`` rows, all of them far in their calls."""
    entry = graph_from_json(json.loads((folder / f"{stage}.json").read_text()), stage)
    path = folder / recipe / f"{stage}.onnx"
    session = open_session(path, pick_provider("cpu")[1], form.threads, spin=form.spin)
    graph = Graph(session, entry, rows)
    graph.inputs["exec"][:] = True
    for state, array in graph.state.arrays.items():
        if state.endswith("position"):
            array[:] = LONG_AGO
        elif array.dtype == bool:
            array[:] = True
    return graph


def export(config: Mapping[str, Any], folder: Path) -> None:
    """Every stage by every recipe into ``folder/RECIPE/STAGE.onnx``, unless the folder is there."""
    if folder.is_dir():
        return
    part = folder.with_name(folder.name + ".part")
    for recipe in RECIPES:
        (part / recipe).mkdir(parents=True, exist_ok=True)
    for name, stage in seeded_stages(config):
        tell(f"exporting {folder.name} {name}")
        source = part / RECIPES[0] / f"{name}.onnx"
        form = export_stage(stage, source, name)
        (part / f"{name}.json").write_text(json.dumps(graph_to_json(form)))
        for recipe in RECIPES[1:]:
            quantize_graph(source, part / recipe / source.name, load_recipe("onnx", recipe))
    part.rename(folder)
    gc.collect()


def seeded_stages(config: Mapping[str, Any]) -> Iterator[tuple[str, Stage]]:
    """The stages of a language model, or of a Mimi, by the configuration."""
    with torch.device("meta"):
        is_lm = "n_q" in config
        model = LanguageModel(config, steps=0) if is_lm else Mimi(config, CODEBOOKS)
    seeded(model)
    if isinstance(model, LanguageModel):
        yield "lm", LanguageStage(model.prepare())
    else:
        mimi = model.prepare()
        yield "encode", EncodeStage(mimi)
        yield "decode", DecodeStage(mimi, CODEBOOKS)


def seeded(model: nn.Module) -> nn.Module:
    """The model with weights that keep signals about as loud as they are."""
    torch.manual_seed(0)
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        if tensor.dim() > 1 and min(tensor.shape) > 1:
            tensor.normal_(0, tensor[0].numel() ** -0.5)
        else:
            tensor.fill_(1)
    return model


def render(attempts: Mapping[str, Values]) -> str:
    """A section in Markdown of the attempts called ``onnx MODEL ROWS``; empty when there are none."""
    lines = [line for key, found in attempts.items() if key.startswith("onnx ") for line in _rows(key, found)]
    if not lines:
        return ""
    about = (
        "Upstream's Mimi in float32 and stt-1b step in bfloat16 beside our graphs, rings full. Memory is "
        "what the process grew by when a form was loaded and had run once (for upstream: its weights)."
    )
    head = (
        "| | batch | form | ms | times as fast, by medians (by the bests) | MB of files | MB of memory |\n"
        "|---|---|---|---|---|---|---|"
    )
    return "\n\n".join(["## ONNX graphs", about, "\n".join([head, *lines]), *_real_time(attempts)])


def _rows(key: str, found: Values) -> Iterator[str]:
    _, model, batch = key.split()
    name, stages = ("stt-1b step", ["lm"]) if model == "lm" else ("Mimi", ["encode", "decode"])
    parts = [stages] if len(stages) == 1 else [*([stage] for stage in stages), stages]
    for part in parts:
        what = name if model == "lm" else f"{name} {' + '.join(part)}"
        what = f"**{what}**" if part == stages else what
        upstream = _total(found, UPSTREAM, part)
        for who, memory_bytes in found["memory_bytes"].items():
            ours = _total(found, who, part)
            faster = [before / after for before, after in zip(upstream, ours, strict=True)]
            cells = [what, batch, who, f"{ours[0]:.1f}", f"{faster[0]:.2f} ({faster[1]:.2f})", "", ""]
            if part == stages:
                files = found["file_bytes"].get(who)
                cells[5:] = ["" if files is None else f"{files / 1e6:.0f}", f"{memory_bytes / 1e6:.0f}"]
            yield f"| {' | '.join(cells)} |"


def _total(found: Values, who: str, stages: Sequence[str]) -> tuple[float, float]:
    """Median and best of some stages together, in ms."""
    times = [found["times"][f"{who} {stage}"] for stage in stages]
    return sum(t["median_ms"] for t in times), sum(t["best_ms"] for t in times)


def _real_time(attempts: Mapping[str, Values]) -> Iterator[str]:
    """What a frame of speech recognition takes, where both of its parts were measured."""
    for key, found in attempts.items():
        mimi = attempts.get(key.replace("onnx lm", "onnx mimi"))
        if key.startswith("onnx lm") and mimi is not None:
            times = (found["times"][f"{REAL_TIME_FORM} lm"], mimi["times"][f"{REAL_TIME_FORM} encode"])
            both_ms = sum(t["median_ms"] for t in times)
            yield (
                f"Batch {key.split()[2]}: the stt-1b step and Mimi's encoder ({CODEBOOKS} codebooks), both "
                f"in {REAL_TIME_FORM}, take {both_ms:.1f} of a frame's {FRAME_MS} ms."
            )
