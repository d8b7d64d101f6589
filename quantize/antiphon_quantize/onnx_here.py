"""For each stage of a model, chooses from several folders the graph that is fastest on this processor."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Final

from antiphon.backends.machine import cpu_name, model_threads
from antiphon.backends.onnx.graph import Graph, check_graph
from antiphon.backends.onnx.loading import ALONE, SHARED, graph_bytes, has_short_products, stages
from antiphon.backends.onnx.sessions import open_session, pick_provider
from antiphon.backends.registry import graphs_command
from antiphon.backends.stopwatch import StepClock
from antiphon.errors import CheckpointFormatError, ConfigError
from antiphon.models.checkpoint import Checkpoint, describe
from antiphon.models.manifest import (
    MANIFEST_NAME,
    BackendFormat,
    file_entry,
    write_manifest,
)
from antiphon.models.published import POCKET
from antiphon_quantize.folder import appearing
from antiphon_quantize.recipe import COPIED

ROWS: Final = (1, 4, 8, 16)
"""The numbers of rows that are timed, with equal weight."""

ROUNDS: Final = 9
"""Timed rounds of alternating runs, after one that does not count."""

GAIN: Final = 0.95
"""A form replaces the first one only if it takes less than this fraction of its time, which is more than the
noise of a measurement."""

Times = dict[int, float]
"""Medians in milliseconds, by number of rows."""


def choose_here(forms: Sequence[Checkpoint], out: Path, *, threads: int | None = None) -> str:
    """Write a model into the new folder ``out`` whose stages are the fastest of ``forms`` on this processor.

    ``forms`` are the same model's graphs by different recipes, the preferred one first. ``threads`` is as in
    the onnx backend. Returns a table of all times as text.

    Raises:
        ConfigError: there is one form only, the forms are of different models, or ``out`` is not writable.
        CheckpointFormatError: a form lacks a graph, or a graph differs from its manifest.
    """
    check_forms(forms)
    first, count = forms[0], model_threads(threads)
    where = f"{cpu_name()}, {count} thread{'s' * (count != 1)}"
    times = {stage: time_stage(stage, forms, count, StepClock()) for stage in stages(first.spec)}
    groups: list[tuple[str, ...]] = [SHARED] if first.spec.family == POCKET else []
    groups += [(stage,) for stage in times if all(stage not in group for group in groups)]
    by_stage = {stage: fastest([times[it] for it in group]) for group in groups for stage in group}
    chosen = {stage: by_stage[stage] for stage in times}
    files = [path for stage, form in chosen.items() for path in _files(forms[form], stage).values()]
    with appearing(out, room_bytes=sum(path.stat().st_size for path in files)) as folder:
        _write(forms, chosen, folder, where)
    return "\n".join([f"{out}: the fastest graphs on {where}.", *_table(forms, times, chosen)])


def check_forms(forms: Sequence[Checkpoint]) -> None:
    """Check that checkpoints are graphs of one model.

    Raises:
        ConfigError: there is only one, or they differ in more than the form of their weights. Graphs in
            float32 do not record their weights, so only their shape is compared.
        CheckpointFormatError: one lacks a graph of a stage.
    """
    first = forms[0]
    if len(forms) < 2:
        raise ConfigError(f"only the graphs of {first.ref} are given: a choice needs two folders or more")
    for form in forms:
        if missing := [stage for stage in stages(form.spec) if stage not in form.graphs]:
            raise CheckpointFormatError(
                f"{form.ref} lacks the graphs {', '.join(missing)}; make them: {graphs_command(form)}"
            )
    shared = _shared(first)
    for form in forms[1:]:
        differing = [name for name, value in _shared(form).items() if value != shared[name]]
        if differing:
            raise ConfigError(f"{form.ref} is not the model of {first.ref}: another {', '.join(differing)}")
    rounded = [(form.ref, it.source_sha256) for form in forms if (it := form.quantization_for("onnx"))]
    if len({source for _, source in rounded}) > 1:
        raise ConfigError(f"{' and '.join(ref for ref, _ in rounded)} were rounded from different weights")


def _shared(form: Checkpoint) -> dict[str, object]:
    """What all forms of a model have in common. The state of a stage may have any form."""
    exchanged = {}
    for stage in stages(form.spec):
        graph = form.graphs[stage]
        own = {name for entry in graph.state for name in (entry.name, entry.output)}
        tensors = (*graph.inputs, *graph.outputs)
        exchanged[stage] = {it.name: str(it) for it in tensors if it.name not in own}
    tokenizer = form.files["tokenizer"].read_bytes() if "tokenizer" in form.files else b""
    return {
        "shape": replace(form.spec, name=""),
        "tokenizer": tokenizer,
        "interface of a stage": exchanged,
    }


def time_stage(stage: str, forms: Sequence[Checkpoint], threads: int, clock: StepClock) -> list[Times]:
    """Time a stage of each form over 1 to 16 rows, alternating, in processor time of ``threads`` threads."""
    counts = ROWS[:1] if stage in ALONE else ROWS
    graphs = [_open(form, stage, threads, counts[-1]) for form in forms]
    found: list[dict[int, list[float]]] = [{count: [] for count in counts} for _ in graphs]
    for turn in range(1 + ROUNDS):
        for count in counts:
            for place in range(len(graphs)):
                which = (turn + place) % len(graphs)
                seconds = clock.seconds(graphs[which].prepare(range(count)), threads)
                if turn:
                    found[which][count].append(1000.0 * seconds)
    return [{count: median(times) for count, times in of_form.items()} for of_form in found]


def _open(form: Checkpoint, stage: str, threads: int, rows: int) -> Graph:
    described = form.graphs[stage]
    path = form.file(described.file)
    session = open_session(
        path, pick_provider("cpu")[1], 1 if has_short_products(graph_bytes(form)) else threads
    )
    check_graph(session, described, path)
    graph = Graph(session, described, rows)
    for array in graph.inputs.values():
        array[:] = 1  # a token, a flag, a top-1: valid input for every graph
    return graph


def fastest(group: Sequence[Sequence[Times]]) -> int:
    """The index of the form whose times in ``group`` have the lowest geometric mean; 0 unless another form is
    faster by more than noise.
    """
    means = [
        geometric_mean([time for stage in group for time in stage[form].values()])
        for form in range(len(group[0]))
    ]
    best = means.index(min(means))
    return best if means[best] < GAIN * means[0] else 0


def form_name(form: Checkpoint) -> str:
    """The recipe of a form's graphs, as ``antiphon quantize`` recorded it."""
    recipe = form.quantization_for("onnx")
    return "float32" if recipe is None else str(recipe.options.get("recipe", recipe.scheme))


def _files(form: Checkpoint, stage: str) -> dict[str, Path]:
    """A stage's graph, with its file of weights, by role."""
    role = form.graphs[stage].file
    return {name: path for name, path in form.files.items() if name.startswith(role)}


def _write(forms: Sequence[Checkpoint], chosen: Mapping[str, int], folder: Path, processor: str) -> None:
    first = forms[0]
    sources = {role: (path, COPIED[role]) for role, path in first.files.items() if role in COPIED}
    graphs = {r: (p, p.name) for stage, form in chosen.items() for r, p in _files(forms[form], stage).items()}
    for path, name in (*sources.values(), *graphs.values()):
        shutil.copyfile(path, folder / name)
    named = {stage: form_name(forms[form]) for stage, form in chosen.items()}
    words = ", ".join(f"{stage} {name}" for stage, name in named.items())
    used = [recipe for form in {*chosen.values()} if (recipe := forms[form].quantization_for("onnx"))]
    least = min(used, key=lambda recipe: recipe.bits, default=None)
    scheme, options = f"by stage: {words}", {"recipe": "here", "processor": processor}
    manifest = describe(
        first,
        name=f"{first.spec.name}-here",
        description=f"The fastest graphs on {processor}: {words}.",
        files={role: file_entry(folder, name) for role, (_, name) in (*sources.items(), *graphs.items())},
        graphs={stage: forms[form].graphs[stage] for stage, form in chosen.items()},
        backends={"onnx": _backend(forms, chosen, tuple(graphs))},
        quantization=least and replace(least, scheme=scheme, options=options),
    )
    write_manifest(manifest, folder / MANIFEST_NAME)


def _backend(forms: Sequence[Checkpoint], chosen: Mapping[str, int], files: tuple[str, ...]) -> BackendFormat:
    """The backend's entry of the first form, with the options of all chosen forms."""
    options = {
        key: value
        for form in {*chosen.values()}
        for key, value in forms[form].backends["onnx"].options.items()
    }
    return replace(forms[0].backends["onnx"], files=files, options=options)


def _table(
    forms: Sequence[Checkpoint], times: Mapping[str, Sequence[Times]], chosen: Mapping[str, int]
) -> list[str]:
    """Milliseconds of each stage and form by number of rows; a star marks the chosen form."""
    lines = [f"ms at rows{'':<18}" + "".join(f"{count:>9}" for count in ROWS)]
    for stage, of_forms in times.items():
        for which, of_form in enumerate(of_forms):
            mark = "*" if which == chosen[stage] else " "
            numbers = "".join(f"{time:9.2f}" for time in of_form.values())
            lines.append(f"{mark} {stage:<12}{form_name(forms[which]):<14}{numbers}")
    return lines
