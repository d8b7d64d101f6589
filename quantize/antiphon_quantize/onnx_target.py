"""A checkpoint as ONNX graphs: one for each stage of a tick, described by the manifest's graph table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import torch

from antiphon.backends.base import Progress
from antiphon.backends.torch.quantised import int8_linears
from antiphon.backends.torch.weights import load_conditions, load_lm, load_mimi
from antiphon.errors import UnsupportedError
from antiphon.models.checkpoint import Checkpoint, as_checkpoint_error, describe, read_checkpoint
from antiphon.models.conditioning import UNGUIDED, SpeakerShape, guidance_of
from antiphon.models.manifest import (
    MANIFEST_NAME,
    BackendFormat,
    FileEntry,
    GraphFormat,
    Manifest,
    file_entry,
    sha256,
    write_manifest,
)
from antiphon.models.published import POCKET
from antiphon.models.source import Folder
from antiphon.models.spec import LMSpec, PipelineKind
from antiphon_quantize.folder import Approve, appearing, approve_all
from antiphon_quantize.onnx_export import export_stage
from antiphon_quantize.onnx_int8 import round_convolutions, round_rings
from antiphon_quantize.onnx_modules import (
    DecodeStage,
    DepformerStage,
    EncodeStage,
    ExportedStage,
    LanguageStage,
    VoiceStage,
)
from antiphon_quantize.pocket_source import pocket_makers
from antiphon_quantize.recipe import COPIED, Recipe, quantization_of

FLOAT_BITS: Final = 32
LEAST_RUNTIME: Final = "1.25"
DATA = ".data"
"""Suffix of a graph's file of weights."""


def quantize(
    checkpoint: Checkpoint,
    recipe: Recipe,
    recipe_name: str,
    out: Path,
    progress: Progress,
    approve: Approve = approve_all,
) -> str:
    """Write ``checkpoint`` as graphs into the new folder ``out``. Returns a summary as text.

    Raises:
        UnsupportedError: the weights are already INT8, or the tts model uses guidance by doubled rows.
        CheckpointFormatError: the weights do not match their configuration. ConfigError: ``out`` is not
        writable.
    """
    sources = {role: checkpoint.files[role] for role in COPIED if role in checkpoint.files}
    room_bytes = sum(path.stat().st_size for path in sources.values()) + 4 * checkpoint.spec.parameters
    with appearing(out, room_bytes=room_bytes) as folder:
        graphs, lines = write_graphs(checkpoint, folder, recipe, progress)
        names = {role: str(Path(COPIED[role]).with_suffix(path.suffix)) for role, path in sources.items()}
        for role, path in sources.items():
            shutil.copyfile(path, folder / names[role])
        entries = {role: file_entry(folder, name) for role, name in names.items()}
        manifest = describe_graphs(checkpoint, folder, graphs, entries, recipe, recipe_name)
        write_manifest(manifest, folder / MANIFEST_NAME)
        approve(read_checkpoint(Folder(folder), str(out)))
    size_bytes = sum(path.stat().st_size for path in out.glob("*.onnx*"))
    return "\n".join([f"{out}: {len(graphs)} graphs, {size_bytes / 1e6:,.1f} MB.", *lines])


def write_graphs(
    checkpoint: Checkpoint,
    folder: Path,
    recipe: Recipe,
    progress: Progress,
    *,
    leave_out: Collection[str] = (),
) -> tuple[dict[str, GraphFormat], list[str]]:
    """Export a checkpoint's stages into ``folder``; returns the graph table, and a line on each rounded
    graph.

    The stages named in ``leave_out`` are not exported, because another model's graphs can replace them.

    Raises:
        UnsupportedError: the weights are already INT8, or the tts model uses guidance by doubled rows.
    """
    made = stage_makers(
        checkpoint,
        int8_ring_bytes=recipe.int8_ring_bytes,
        int8_convolution_positions=recipe.int8_convolution_positions,
    )
    makers = {name: make for name, make in made.items() if name not in leave_out}
    graphs: dict[str, GraphFormat] = {}
    lines: list[str] = []
    for done, (name, make) in enumerate(makers.items()):
        progress(done, len(makers), f"{name}.onnx")
        path = folder / f"{name}.onnx"
        if recipe.bits == FLOAT_BITS:
            graphs[name] = export_stage(make(), path, f"onnx.{name}")
            continue
        whole = folder / f"whole-{name}.onnx"
        graphs[name] = export_stage(make(), whole, f"onnx.{name}")
        lines.append(_round(whole, path, recipe))
    progress(len(makers), len(makers), "manifest")
    return graphs, lines


def _round(whole: Path, path: Path, recipe: Recipe) -> str:
    """Rewrite an exported graph in the recipe's bits, and delete the original; returns a summary as text."""
    from antiphon_quantize.onnx_weights import quantize_graph

    report = quantize_graph(whole, path, recipe)
    for part in (whole, Path(f"{whole}{DATA}")):
        part.unlink(missing_ok=True)
    name, error = report.worst
    before, after = report.before_bytes / 1e6, report.after_bytes / 1e6
    return (
        f"{path.name}: {before:,.1f} MB of weights became {after:,.1f} MB; rounding moved "
        f"{len(report.errors)} matrices by {report.mean_error:.2%}, at most by {error:.2%} ({name})."
    )


def describe_graphs(
    checkpoint: Checkpoint,
    folder: Path,
    graphs: Mapping[str, GraphFormat],
    sources: Mapping[str, FileEntry],
    recipe: Recipe,
    recipe_name: str,
) -> Manifest:
    """The manifest of a model of graphs in ``folder``. It reads and hashes every graph."""
    files = {role: file_entry(folder, name) for role, name in graph_files(folder, graphs)}
    quantization = None
    if recipe.bits < FLOAT_BITS:
        source = "mimi" if checkpoint.spec.kind is PipelineKind.CODEC else "lm"
        digest, group = sha256(checkpoint.file(source)), recipe.group_size
        quantization = quantization_of(recipe, recipe_name, checkpoint, digest, group_size=group)
    return describe(
        checkpoint,
        name=f"{checkpoint.spec.name}-onnx-{Path(recipe_name).stem}",
        files={**sources, **files},
        graphs=graphs,
        backends={"onnx": backend_format(files, recipe)},
        quantization=quantization,
        description=recipe.description,
    )


def backend_format(files: Iterable[str], recipe: Recipe) -> BackendFormat:
    """The manifest's entry for the onnx backend, with the version of ONNX Runtime that it requires."""
    return BackendFormat(
        tuple(files), "float32", requires={"onnxruntime": LEAST_RUNTIME}, options=recipe.options
    )


def stage_makers(
    checkpoint: Checkpoint,
    *,
    int8_ring_bytes: int | None = None,
    int8_convolution_positions: Mapping[str, int] | None = None,
) -> Mapping[str, Callable[[], ExportedStage]]:
    """Functions that make a checkpoint's stages for export, in float32 except for the selected INT8 parts.

    Raises:
        UnsupportedError: the weights are already INT8, or the tts model uses guidance by doubled rows.
        CheckpointFormatError: the weights do not match their configuration.
    """
    spec = checkpoint.spec
    if spec.family == POCKET:
        return pocket_makers(checkpoint, int8_convolution_positions or {})
    mimi = load_mimi(checkpoint.file("mimi"), spec.mimi.config, spec.mimi.codebooks)
    round_convolutions(mimi, int8_convolution_positions or {})
    mimi.prepare()
    makers: dict[str, Callable[[], ExportedStage]] = {}
    if spec.kind is not PipelineKind.TTS:
        makers["encode"] = lambda: EncodeStage(mimi)
    if spec.lm is not None:
        makers |= _language_makers(checkpoint, spec.lm, int8_ring_bytes)
    if spec.kind is not PipelineKind.STT:
        codebooks = spec.mimi.codebooks if spec.lm is None else spec.lm.dep_q
        makers["decode"] = lambda: DecodeStage(mimi, codebooks)
    return makers


def _language_makers(
    checkpoint: Checkpoint, lm: LMSpec, int8_ring_bytes: int | None
) -> dict[str, Callable[[], ExportedStage]]:
    spec = checkpoint.spec
    shape = None
    if spec.kind is PipelineKind.TTS:
        shape, guidance = SpeakerShape.of(spec), guidance_of(spec)
        if guidance != UNGUIDED:
            raise UnsupportedError(
                f"{spec.name} is guided by {guidance:g}, which makes two sequences of every row; graphs have "
                "one, so only the torch backend runs it"
            )
    with as_checkpoint_error(spec.name, torch.OutOfMemoryError):
        model = load_lm(
            checkpoint.file("lm"),
            lm.config,
            steps=lm.dep_q,
            family=spec.family,
            lora=checkpoint.files.get("lora"),
            cross_positions=0 if shape is None else shape.positions,
        ).prepare()
    if rounded := len(int8_linears(model)):
        raise UnsupportedError(f"{spec.name} has {rounded} INT8 layers; start from its float weights")
    round_rings(model.transformer, int8_ring_bytes)
    makers: dict[str, Callable[[], ExportedStage]] = {}
    if spec.kind is PipelineKind.TTS:
        conditions = load_conditions(checkpoint.file("lm"), spec, torch.device("cpu"))
        model.condition = conditions.constant
        if shape is not None:
            voice = VoiceStage(model, conditions)
            makers["voice"] = lambda: voice
    makers["lm"] = lambda: LanguageStage(model)
    depformer = model.depformer
    if depformer is not None:
        makers["depformer"] = lambda: DepformerStage(depformer)
    return makers


def graph_files(folder: Path, graphs: Mapping[str, GraphFormat]) -> Iterator[tuple[str, str]]:
    """The role and the name of every file that the graphs in ``folder`` consist of."""
    for name, graph in graphs.items():
        yield graph.file, f"{name}.onnx"
        if (folder / f"{name}.onnx{DATA}").is_file():
            yield f"{graph.file}{DATA}", f"{name}.onnx{DATA}"
