"""Smaller checkpoints for the torch backend: a published language model with some of its matrices rounded.

Names stay the published ones, and the rest of the model stays as it is. One matrix is in memory at a time;
what is done is noted, so that a run that was stopped can be gone on with.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from hashlib import sha256 as hash_text
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open
from torch import Tensor

from antiphon import __version__
from antiphon.errors import UnsupportedError
from antiphon.models.architecture import stored_sets
from antiphon.models.checkpoint import Checkpoint, read_checkpoint
from antiphon.models.manifest import (
    MANIFEST_NAME,
    BackendFormat,
    Manifest,
    QuantizationRecipe,
    file_entry,
    sha256,
    write_manifest,
)
from antiphon.models.source import Folder
from antiphon.models.weights import TensorInfo, read_header
from antiphon_quantize.calibration import Progress, RowFiles, load_recordings, record_rows
from antiphon_quantize.folder import Approve, approve_all
from antiphon_quantize.gate_sound import built_in_clips
from antiphon_quantize.journal import Journal, resuming
from antiphon_quantize.recipe import Recipe, told_options
from antiphon_quantize.tensor_file import TensorFile, writing_tensors
from antiphon_quantize.torch_formats import Rounded, format_of, stacked
from antiphon_quantize.torch_methods import Rounding, rounding_of
from antiphon_quantize.torch_plan import TorchPlan, make_plan

LEAST_TORCH: Final = "2.9"

DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls torch's dtypes."""

NAMES: Mapping[str, str] = {
    "lm": "model.safetensors",
    "mimi": "mimi.safetensors",
    "tokenizer": "tokenizer.model",
    "mimi_config": "mimi_config.json",
}
"""What the files of each role are called in OUT."""

COMPUTED: Mapping[str, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The manifest's names of dtypes."""

CALIBRATION = "calibration"
"""The folder of recorded rows within the one being written, and the note that it is complete."""


def quantize(
    checkpoint: Checkpoint,
    recipe: Recipe,
    recipe_name: str,
    out: Path,
    progress: Progress,
    approve: Approve = approve_all,
    calibration: Sequence[Path] = (),
) -> str:
    """Write ``checkpoint`` as the recipe says into the new folder ``out``. Returns a summary as text.

    ``calibration`` are recordings to listen to where the recipe does (none: the built-in ones).

    Raises:
        UnsupportedError: no language model, rounded already, with a LoRA, or none that listens.
        ConfigError: ``out`` cannot be written, or is by a run with another recipe.
        AudioError: a recording cannot be read.
    """
    if checkpoint.spec.lm is None:
        raise UnsupportedError(f"{checkpoint.spec.name} has no language model; there is nothing to quantize")
    if "lora" in checkpoint.files:
        raise UnsupportedError(f"{checkpoint.spec.name} has a LoRA; merge it into the weights first")
    plan = make_plan(checkpoint.file("lm"), recipe, stored_sets(checkpoint.spec.lm.config))
    copied = {role: checkpoint.files[role] for role in NAMES if role != "lm" and role in checkpoint.files}
    before, after = plan.bytes
    room_bytes = after + sum(path.stat().st_size for path in copied.values())
    source_hash = sha256(checkpoint.file("lm"))
    recordings = list(calibration) or built_in_clips()
    with resuming(out, _key(source_hash, recipe, recordings), room_bytes=room_bytes) as journal:
        rounding = rounding_of(recipe, format_of(recipe))
        rows = _recorded(checkpoint, plan, rounding, recordings, journal, progress)
        _write_rounded(checkpoint.file("lm"), plan, rounding, rows, journal, progress)
        for role, path in copied.items():
            shutil.copyfile(path, journal.folder / NAMES[role])
        heard = recordings if recipe.method != "nearest" else []
        manifest = _manifest(checkpoint, recipe, recipe_name, journal.folder, source_hash, heard)
        write_manifest(manifest, journal.folder / MANIFEST_NAME)
        shutil.rmtree(journal.folder / CALIBRATION, ignore_errors=True)
        approve(read_checkpoint(Folder(journal.folder), str(out)))
        errors = {name: float(journal.notes[name]["error"]) for name in plan.chosen}
    return (
        f"{out}: {len(plan.chosen)} of {len(plan.before)} tensors are {recipe.format.upper()}, "
        f"{before / 1e6:,.1f} MB became {after / 1e6:,.1f} MB. {error_line(errors)}"
    )


def _key(source_hash: str, recipe: Recipe, recordings: Sequence[Path]) -> dict[str, str]:
    """All that the content of OUT depends on."""
    key = {"model": source_hash, "recipe": hash_text(repr(recipe).encode()).hexdigest()}
    if recipe.method != "nearest":
        hashes = "".join(sha256(path) for path in recordings if path.is_file())
        key["calibration"] = hash_text(hashes.encode()).hexdigest()
    return key


def _recorded(
    checkpoint: Checkpoint,
    plan: TorchPlan,
    rounding: Rounding,
    recordings: Sequence[Path],
    journal: Journal,
    progress: Progress,
) -> RowFiles | None:
    """What the linears that are to be rounded were multiplied with; None where the recipe does not look."""
    if rounding.method is None:
        return None
    is_wide = any(info.dtype == "F32" for info in plan.before.values())
    files = RowFiles(journal.folder / CALIBRATION, torch.float32 if is_wide else torch.bfloat16)
    if CALIBRATION in journal.notes:
        return files
    shutil.rmtree(files.folder, ignore_errors=True)
    files.folder.mkdir()
    linears = [name for names in plan.chosen.values() for name in names]
    sound = load_recordings(recordings, checkpoint.spec.mimi.sample_rate)
    heard = record_rows(checkpoint, sound, linears, files, progress)
    journal.note(CALIBRATION, frames=heard)
    return files


def _write_rounded(
    source: Path,
    plan: TorchPlan,
    rounding: Rounding,
    rows: RowFiles | None,
    journal: Journal,
    progress: Progress,
) -> None:
    """Write the planned file, but for what is noted as done; one tensor in memory at a time."""
    done = {name for name in plan.before if name in journal.notes}
    written = [name for name in plan.after if name in done or _beside(name, plan) in done]
    target = journal.folder / NAMES["lm"]
    with writing_tensors(target, plan.after, written) as file:
        for index, name in enumerate(plan.before):
            if name in done:
                continue
            progress(index, len(plan.before), name)
            with safe_open(source, framework="pt") as opened:  # anew, or all its pages would stay mapped
                tensor = opened.get_tensor(name)
            error = None
            if name in plan.chosen:
                error = _write_matrix(file, name, tensor, plan.chosen[name], rounding, rows)
            else:
                put(file, name, tensor)
            del tensor
            file.sync()
            journal.note(name, error=error)
    progress(len(plan.before), len(plan.before), target.name)


def _beside(name: str, plan: TorchPlan) -> str | None:
    """The matrix that a tensor stands next to, if there is one."""
    base = name.rpartition("_")[0]
    return base if base in plan.chosen else None


def _write_matrix(
    file: TensorFile,
    name: str,
    tensor: Tensor,
    linears: tuple[str, ...],
    rounding: Rounding,
    rows: RowFiles | None,
) -> float:
    """Write one matrix, rounded, and what stands next to it. Returns how far it moved, relative (norms)."""
    parts: list[Rounded] = []
    moved, total = 0.0, 0.0
    for linear, part in zip(linears, tensor.chunk(len(linears)), strict=True):
        heard = None if rows is None else rows.read(linear, part.shape[1])
        rounded = rounding(part, heard)
        moved += float((rounded.values() - part.float()).square().sum())
        total += float(part.float().square().sum())
        parts.append(rounded)
    for own_name, made in stacked(parts).tensors(name):
        put(file, own_name, made)
    return float((moved / total) ** 0.5) if total else 0.0


def put(file: TensorFile, name: str, tensor: Tensor) -> None:
    """Write one tensor into a file that planned it (a ValueError says what is not as planned)."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    file.put(name, TensorInfo(DTYPES[tensor.dtype], tuple(tensor.shape)), data)


def error_line(errors: Mapping[str, float]) -> str:
    """How far matrices moved, of which each moved by as much, relative to itself."""
    worst = max(errors, key=errors.__getitem__)
    return (
        f"Rounding moved the weights by {sum(errors.values()) / len(errors):.2%}, "
        f"at most by {errors[worst]:.2%} ({worst})."
    )


def _manifest(
    checkpoint: Checkpoint,
    recipe: Recipe,
    recipe_name: str,
    folder: Path,
    source_hash: str,
    heard: Sequence[Path],
) -> Manifest:
    """The manifest of what lies in ``folder``. Reads and hashes every file."""
    spec, source = checkpoint.spec, checkpoint.manifest
    assert spec.lm is not None
    dtype = COMPUTED[read_header(folder / NAMES["lm"])["text_emb.weight"].dtype]
    backend = BackendFormat(("lm", "mimi"), dtype, requires={"torch": LEAST_TORCH}, options=recipe.options)
    files = {role: file_entry(folder, name) for role, name in NAMES.items() if (folder / name).is_file()}
    options = told_options(recipe, recipe_name, checkpoint)
    if heard:
        options["calibration"] = ", ".join(path.name for path in heard)
    return Manifest(
        name=f"{spec.name}-{Path(recipe_name).stem}",
        family=spec.family,
        files=files,
        codebooks=spec.mimi.codebooks,
        mimi_config=spec.mimi.config,
        lm=spec.lm.config,
        generation=spec.generation,
        parameters=spec.parameters,
        backends={"torch": backend},
        quantization=QuantizationRecipe(
            scheme=recipe.scheme,
            bits=recipe.bits,
            group_size=recipe.block if recipe.format == "int4" else None,
            keep=tuple(rule.tensors for rule in recipe.keep),
            source_sha256=source_hash,
            tool=f"antiphon quantize {__version__}",
            options=options,
        ),
        description=recipe.description,
        license="" if source is None else source.license,
    )
