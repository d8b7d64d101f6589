"""Smaller checkpoints for the torch backend: a published language model with some of its matrices rounded.

Names are the published ones, and the rest of the model is unchanged. One matrix is in memory at a time;
finished tensors are recorded, so that a stopped run can be resumed.

Some methods need calibration data: inputs of a model's linears, recorded while it runs. The model runs as in
service: recordings through its own codec, its own sampled text and voice. Rows are written to files at once,
so that recording takes no additional memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256 as hash_text
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from antiphon.audio.files import read_audio
from antiphon.backends.base import Backend, FloatArray, Progress, StepInputs
from antiphon.backends.registry import make_backend
from antiphon.errors import ConfigError, UnsupportedError
from antiphon.models.architecture import stored_sets
from antiphon.models.checkpoint import Checkpoint, describe, read_checkpoint
from antiphon.models.manifest import (
    MANIFEST_NAME,
    BackendFormat,
    Manifest,
    file_entry,
    sha256,
    write_manifest,
)
from antiphon.models.sampling import SamplingParameters
from antiphon.models.source import Folder
from antiphon.models.spec import PipelineKind
from antiphon.models.weights import TensorInfo, read_header
from antiphon_quantize.folder import Approve, Journal, approve_all, resuming
from antiphon_quantize.gate_sound import built_in_clips
from antiphon_quantize.gate_subject import known
from antiphon_quantize.gate_torch import pipeline_of
from antiphon_quantize.recipe import COPIED, Recipe, check_source, quantization_of
from antiphon_quantize.tensor_file import DTYPES, TensorFile, writing_tensors
from antiphon_quantize.torch_rounding import (
    Rounded,
    Rounding,
    TorchPlan,
    format_of,
    make_plan,
    rounding_of,
    stacked,
)

MOST_FRAMES = 3000
"""Frames of calibration: four minutes, the same number of rows of each linear (Moshi 7B: 4.5 GB in total)."""

KINDS = (PipelineKind.DUPLEX, PipelineKind.STT)


class RowFiles:
    """Recorded input rows ``[n, in]`` of linears in ``dtype``, one file in the folder for each linear."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        """Use the folder, which may already contain rows."""
        self.folder, self.dtype = folder, dtype

    def append(self, name: str, rows: Tensor) -> None:
        """Add rows ``[..., in]`` of the linear ``name``."""
        data = rows.detach().to(self.dtype).reshape(-1).view(torch.uint8)
        with (self.folder / name).open("ab") as file:
            file.write(data.numpy().data)

    def read(self, name: str, width: int) -> Tensor | None:
        """All rows of a linear in float32, ``[n, width]``; None if there are none."""
        path = self.folder / name
        if not path.exists():
            return None
        data = torch.from_numpy(np.fromfile(path, dtype=np.uint8))
        return data.view(self.dtype).view(-1, width).float()


def load_recordings(paths: Sequence[Path], sample_rate: int) -> list[FloatArray]:
    """Read recordings: float32 ``[N]`` each, at ``sample_rate`` in Hz.

    Raises:
        AudioError: a file does not exist, or is not readable audio.
    """
    return [read_audio(path, sample_rate) for path in paths]


def record_rows(
    checkpoint: Checkpoint,
    recordings: Sequence[FloatArray],
    linears: Collection[str],
    files: RowFiles,
    progress: Progress,
) -> int:
    """Run the model on the recordings, and keep the inputs of the named linears.

    Returns the number of frames.

    Raises:
        UnsupportedError: the model has no audio input.
        ConfigError: the recordings are shorter than a frame.
    """
    spec = checkpoint.spec
    if spec.kind not in KINDS:
        raise UnsupportedError(f"{spec.name} is a {spec.kind} model: it has no audio input")
    frames = _frames(recordings, spec.mimi.frame_samples)
    dtype = str(files.dtype).removeprefix("torch.")
    backend = make_backend("torch", checkpoint, slots=1, device="cpu", options={"dtype": dtype})
    backend.set_parameters(0, SamplingParameters.from_generation(spec.generation))
    hooks = _listen_in(backend, linears, files)
    try:
        row = np.zeros(1, np.int32)
        for done, (is_first, pcm) in enumerate(frames):
            progress(done, len(frames), "frames heard")
            backend.step(StepInputs(row, np.array([is_first]), pcm[None]))
    finally:
        for hook in hooks:
            hook.remove()
    progress(len(frames), len(frames), "frames heard")
    return len(frames)


def _frames(recordings: Sequence[FloatArray], samples: int) -> list[tuple[bool, FloatArray]]:
    """Whole frames of all recordings, up to ``MOST_FRAMES``, and whether each starts a recording."""
    cut = [pcm[: len(pcm) // samples * samples].reshape(-1, samples) for pcm in recordings]
    frames = [(index == 0, frame) for pcm in cut for index, frame in enumerate(pcm)]
    if not frames:
        total = sum(map(len, recordings))
        raise ConfigError(f"{len(recordings)} recordings of {total} samples; a frame has {samples}")
    return frames[:MOST_FRAMES]


def _listen_in(backend: Backend, linears: Collection[str], files: RowFiles) -> list[Any]:
    generator = known(pipeline_of(backend).generator)

    def hook_of(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, inputs: files.append(name, inputs[0])

    modules = dict(generator.model.named_modules())
    return [modules[name].register_forward_pre_hook(hook_of(name)) for name in linears if name in modules]


LEAST_TORCH: Final = "2.9"

TORCH_DTYPES: Final = {getattr(torch, name): dtype for dtype, (name, _) in DTYPES.items()}
"""The name of torch's dtypes in safetensors."""

NAMES: Final = {"lm": "model.safetensors", **COPIED}
"""The file names in OUT by role."""

CALIBRATION = "calibration"
"""The folder of recorded rows within the unfinished one, and the note that it is complete."""


def quantize(
    checkpoint: Checkpoint,
    recipe: Recipe,
    recipe_name: str,
    out: Path,
    progress: Progress,
    approve: Approve = approve_all,
    calibration: Sequence[Path] = (),
) -> str:
    """Write ``checkpoint``, rounded by the recipe, into the new folder ``out``. Returns a summary as text.

    ``calibration`` is recordings for recipes with calibration (empty: the built-in ones).

    Raises:
        UnsupportedError: no language model, rounded already, with a LoRA, or without audio input for a recipe
            with calibration.
        ConfigError: ``out`` is not writable, or belongs to a run with another recipe.
        AudioError: a recording cannot be read.
    """
    lm = check_source(checkpoint)
    plan = make_plan(checkpoint.file("lm"), recipe, stored_sets(lm.config))
    copied = {role: checkpoint.files[role] for role in NAMES if role != "lm" and role in checkpoint.files}
    before, after = plan.bytes
    room_bytes = after + sum(path.stat().st_size for path in copied.values())
    source_hash = sha256(checkpoint.file("lm"))
    recordings = list(calibration) or built_in_clips()
    key = {"model": source_hash, "recipe": hash_text(repr(recipe).encode()).hexdigest()}
    if recipe.method != "nearest":
        hashes = "".join(sha256(path) for path in recordings if path.is_file())
        key["calibration"] = hash_text(hashes.encode()).hexdigest()
    with resuming(out, key, room_bytes=room_bytes) as journal:
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


def _recorded(
    checkpoint: Checkpoint,
    plan: TorchPlan,
    rounding: Rounding,
    recordings: Sequence[Path],
    journal: Journal,
    progress: Progress,
) -> RowFiles | None:
    """The recorded inputs of the linears to round; None if the recipe needs none."""
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
    """Write the planned file except for the finished tensors; one tensor in memory at a time."""
    done = {name for name in plan.before if name in journal.notes}
    rounded = done & plan.chosen.keys()  # a matrix's other tensors have its name and one more word
    written = [name for name in plan.after if name in done or name.rpartition("_")[0] in rounded]
    target = journal.folder / NAMES["lm"]
    with writing_tensors(target, plan.after, written) as file:
        for index, name in enumerate(plan.before):
            if name in done:
                continue
            progress(index, len(plan.before), name)
            with safe_open(source, framework="pt") as opened:  # reopened, or all its pages would stay mapped
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


def _write_matrix(
    file: TensorFile,
    name: str,
    tensor: Tensor,
    linears: tuple[str, ...],
    rounding: Rounding,
    rows: RowFiles | None,
) -> float:
    """Write one rounded matrix with its scales; return its relative error (a ratio of norms)."""
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
    """Write one tensor into a file with a plan for it (raises ValueError with the difference)."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    file.put(name, TensorInfo(TORCH_DTYPES[tensor.dtype], tuple(tensor.shape)), data)


def error_line(errors: Mapping[str, float]) -> str:
    """A sentence with the mean and the largest relative error of the matrices."""
    worst = max(errors, key=errors.__getitem__)
    return (
        f"Rounding changed the weights by {sum(errors.values()) / len(errors):.2%}, "
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
    """The manifest of the files in ``folder``. It reads and hashes every file."""
    dtype, _ = DTYPES[read_header(folder / NAMES["lm"])["text_emb.weight"].dtype]
    backend = BackendFormat(("lm", "mimi"), dtype, requires={"torch": LEAST_TORCH}, options=recipe.options)
    return describe(
        checkpoint,
        name=f"{checkpoint.spec.name}-{Path(recipe_name).stem}",
        files={role: file_entry(folder, name) for role, name in NAMES.items() if (folder / name).is_file()},
        graphs={},
        backends={"torch": backend},
        quantization=quantization_of(
            recipe,
            recipe_name,
            checkpoint,
            source_hash,
            group_size=recipe.block if recipe.format == "int4" else None,
            heard=", ".join(path.name for path in heard),
        ),
        description=recipe.description,
    )
