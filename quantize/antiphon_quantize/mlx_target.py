"""Checkpoints for the mlx backend: matrices in affine groups of a few bits, under ``moshi_mlx``'s names.

Group-wise affine rounding is mlx's own (``mx.quantize``): along each row a group of numbers shares a scale
and a bias. A file whose recipe has no exceptions equals the output of ``scripts/quantize_mlx.py`` of
kyutai-labs/moshi.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import mlx.core as mx
import numpy as np

from antiphon.backends.base import Progress
from antiphon.backends.mlx.layers import BITS, GROUP_SIZES, load_arrays
from antiphon.backends.mlx.lm import cut
from antiphon.errors import UnsupportedError
from antiphon.models.checkpoint import Checkpoint, describe, read_checkpoint
from antiphon.models.manifest import (
    MANIFEST_NAME,
    BackendFormat,
    Manifest,
    file_entry,
    sha256,
    write_manifest,
)
from antiphon.models.source import Folder
from antiphon.models.spec import LMSpec
from antiphon.models.weights import Source, TensorInfo, find_sources, read_header
from antiphon_quantize.folder import Approve, appearing, approve_all
from antiphon_quantize.recipe import COPIED, Recipe, check_source, quantization_of
from antiphon_quantize.tensor_file import DTYPES, TensorFile, tensor_bytes, writing_tensors

LEAST_MLX: Final = "0.29"
_WORD_BITS: Final = 32
_WEIGHT: Final = ".weight"


@dataclass(frozen=True, slots=True)
class Groups:
    """The rounding of a matrix: bits, and the number of weights in a group."""

    bits: int
    group_size: int


@dataclass(frozen=True, slots=True)
class MlxPlan:
    """The plan for a language model's tensors, by mlx's names.

    ``sources`` has the place of each tensor in the file, ``rounded`` the tensors to round and their rounding.
    ``after`` describes the complete new file. ``odd`` counts matrices that the recipe names but that are not
    rounded, because no group size divides their rows.
    """

    before: Mapping[str, TensorInfo]
    sources: Mapping[str, Source]
    rounded: Mapping[str, Groups]
    after: Mapping[str, TensorInfo]
    odd: int


def quantize(
    checkpoint: Checkpoint,
    recipe: Recipe,
    recipe_name: str,
    out: Path,
    progress: Progress,
    approve: Approve = approve_all,
) -> str:
    """Write ``checkpoint``, rounded by the recipe, into the new folder ``out``. Returns a summary as text.

    Raises:
        UnsupportedError: there is no language model, or it is already rounded or has a LoRA, or mlx does
            not support the bits or groups.
        ConfigError: ``out`` is not writable.
    """
    lm = check_source(checkpoint)
    plan = make_plan(checkpoint.file("lm"), lm, recipe)
    copied = {COPIED[role]: checkpoint.files[role] for role in COPIED if role in checkpoint.files}
    before, after = (sum(map(tensor_bytes, part.values())) for part in (plan.before, plan.after))
    lm_name = f"model.q{recipe.bits}.safetensors"
    with appearing(out, room_bytes=after + sum(path.stat().st_size for path in copied.values())) as folder:
        errors = write_rounded(checkpoint.file("lm"), folder / lm_name, plan, progress)
        for name, path in copied.items():
            shutil.copyfile(path, folder / name)
        write_manifest(_manifest(checkpoint, recipe, recipe_name, folder, lm_name), folder / MANIFEST_NAME)
        approve(read_checkpoint(Folder(folder), str(out)))
    worst, mean = max(errors, key=errors.__getitem__), sum(errors.values()) / len(errors)
    odd = f" {plan.odd} others are unchanged, since no group divides their rows." if plan.odd else ""
    return (
        f"{out}: {len(plan.rounded)} matrices are rounded, {before / 1e6:,.1f} MB became "
        f"{after / 1e6:,.1f} MB. Rounding changed the weights by {mean:.2%}, at most by "
        f"{errors[worst]:.2%} ({worst}).{odd}"
    )


def make_plan(path: Path, lm: LMSpec, recipe: Recipe) -> MlxPlan:
    """Plan the rounding of a language model by the recipe, from the header of its file only.

    Raises:
        UnsupportedError: see :func:`quantize`, or the recipe chooses nothing in it. CheckpointFormatError:
        the file is not a safetensors file.
    """
    before = read_header(path)
    packed = sum(info.dtype in ("I8", "U32") for info in before.values())
    if packed:
        raise UnsupportedError(f"{path} is rounded already, in {packed} of its {len(before)} tensors")
    sources = find_sources(before, lm.config, lm.depformer_steps)
    rounded: dict[str, Groups] = {}
    after: dict[str, TensorInfo] = {}
    odd = 0
    for name, source in sources.items():
        info = TensorInfo(before[source.name].dtype, source.shape(before[source.name].shape))
        after[name] = info
        bits = recipe.bits_of(name)
        if bits is None or not name.endswith(_WEIGHT) or len(info.shape) != 2 or not info.is_floating:
            continue
        group_size = widest_group(info.shape[1], recipe.block)
        if bits not in BITS or recipe.block not in GROUP_SIZES:
            raise UnsupportedError(
                f"{bits} bits in groups of {recipe.block}: mlx has {', '.join(map(str, BITS))} bits and "
                f"groups of {', '.join(map(str, GROUP_SIZES))}"
            )
        if group_size is None:
            odd += 1
            continue
        rounded[name], (rows, columns) = Groups(bits, group_size), info.shape
        scales = TensorInfo(info.dtype, (rows, columns // group_size))
        base = name.removesuffix(_WEIGHT)
        after[name] = TensorInfo("U32", (rows, columns * bits // _WORD_BITS))
        after |= {f"{base}.scales": scales, f"{base}.biases": scales}
    if not rounded:
        raise UnsupportedError(f"the recipe chooses none of the {len(before)} tensors of {path}")
    return MlxPlan(before, sources, rounded, after, odd)


def widest_group(columns: int, most: int) -> int | None:
    """The widest group up to ``most`` that divides a row of ``columns`` weights; None if there is none."""
    return next((size for size in reversed(GROUP_SIZES) if size <= most and columns % size == 0), None)


def write_rounded(source: Path, target: Path, plan: MlxPlan, progress: Progress) -> dict[str, float]:
    """Write the planned file, with one tensor of the source in memory at a time.

    Returns the relative error (a ratio of norms) of each rounded matrix.
    """
    wanted: dict[str, list[str]] = {}
    for name, place in plan.sources.items():
        wanted.setdefault(place.name, []).append(name)
    arrays, errors = load_arrays(source), dict[str, float]()
    with writing_tensors(target, plan.after) as written:
        for done, (held, names) in enumerate(wanted.items()):
            progress(done, len(wanted), held)
            whole = arrays.pop(held)
            for name in names:
                part = cut(whole, plan.sources[name])
                if name in plan.rounded:
                    errors[name] = _put_rounded(written, name, part, plan)
                else:
                    _put(written, [(name, part)], plan)
    progress(len(wanted), len(wanted), target.name)
    return errors


def _put_rounded(file: TensorFile, name: str, matrix: mx.array, plan: MlxPlan) -> float:
    """Round a matrix and write its three tensors; returns the relative error."""
    groups, base = plan.rounded[name], name.removesuffix(_WEIGHT)
    packed, scales, biases = mx.quantize(matrix, groups.group_size, groups.bits)
    back = mx.dequantize(packed, scales, biases, groups.group_size, groups.bits)
    wide = matrix.astype(mx.float32)
    error = mx.linalg.norm(back.astype(mx.float32) - wide) / mx.linalg.norm(wide)
    _put(file, [(name, packed), (f"{base}.scales", scales), (f"{base}.biases", biases)], plan)
    return float(np.array(error))


def _put(file: TensorFile, tensors: Iterable[tuple[str, mx.array]], plan: MlxPlan) -> None:
    for name, array in tensors:
        info = plan.after[name]
        data = np.array(mx.contiguous(array).reshape(-1).view(mx.uint8))
        file.put(name, TensorInfo(info.dtype, tuple(array.shape)), data.data)


def _manifest(
    checkpoint: Checkpoint, recipe: Recipe, recipe_name: str, folder: Path, lm_name: str
) -> Manifest:
    """The manifest of the files in ``folder``. It reads and hashes every file."""
    dtype, _ = DTYPES[read_header(folder / lm_name)["out_norm.weight"].dtype]
    names = {"lm": lm_name, **COPIED}
    backend = BackendFormat(("lm", "mimi"), dtype, requires={"mlx": LEAST_MLX}, options=recipe.options)
    source_sha256 = sha256(checkpoint.file("lm"))
    return describe(
        checkpoint,
        name=f"{checkpoint.spec.name}-mlx-{Path(recipe_name).stem}",
        files={role: file_entry(folder, name) for role, name in names.items() if (folder / name).is_file()},
        graphs={},
        backends={"mlx": backend},
        quantization=quantization_of(recipe, recipe_name, checkpoint, source_sha256, group_size=recipe.block),
        description=recipe.description,
    )
