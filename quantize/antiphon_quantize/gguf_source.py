"""Converts a language model in a GGUF file, in any of its formats such as Q8_0 and Q4_K, to the published
layout.

GGUF is ggml's container (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), read by ggml's own
package ``gguf``. Names in it are the published ones, or those of kyutai-labs/moshi's Rust programs
(``rust/moshi-core/src/lm.rs``), where each step of the depformer is a slice with all its weights. Values
become bfloat16, which changes them by at most 0.4 %; one tensor is in memory at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon.backends.base import Progress
from antiphon.errors import CheckpointFormatError, MissingExtraError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.weights import TensorInfo
from antiphon_quantize.tensor_file import writing_tensors

_SLICE: Final = re.compile(r"^depformer\.(\d+)\.(.*)$")
_LAYER: Final = re.compile(r"^transformer\.(layers\.\d+\.)(gating|self_attn|norm\d)\.?(.*)$")
_FLAT: Final = {"linear_in.weight": "depformer_in", "linear_out.weight": "linears"}


@contextmanager
def language_model_from(
    path: Path, checkpoint: Checkpoint, out: Path, show: Progress
) -> Iterator[Checkpoint]:
    """``checkpoint`` with the language model of a GGUF file, converted to a file next to ``out``.

    The file itself has the role "gguf", so that the new manifest can name it.

    Raises:
        MissingExtraError: the package that reads it is not installed. CheckpointFormatError: the file is not
        a GGUF file, or its tensors are not those of a language model.
    """
    part = out.with_name(f"{out.name}.gguf.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        convert(path, part, show)
        yield replace(checkpoint, files={**checkpoint.files, "lm": part, "gguf": path})
    finally:
        part.unlink(missing_ok=True)


def convert(source: Path, target: Path, show: Progress) -> None:
    """Write a GGUF file's tensors as safetensors in bfloat16. Raises as :func:`language_model_from`."""
    if find_spec("gguf") is None:
        raise MissingExtraError("reading GGUF", extra="quantize", module="gguf")
    import gguf

    try:
        reader = gguf.GGUFReader(source)
    except (OSError, ValueError, IndexError) as error:
        raise CheckpointFormatError(f"{source} is no GGUF file: {error}") from error
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    parts = sources_of(tensors)
    shapes = {name: tuple(int(size) for size in reversed(found.shape)) for name, found in tensors.items()}
    plan = {
        name: TensorInfo("BF16", (sum(shapes[part][0] for part in names), *shapes[names[0]][1:]))
        for name, names in parts.items()
    }
    with writing_tensors(target, plan) as file:
        for done, (name, names) in enumerate(parts.items()):
            show(done, len(parts), name)
            values = np.concatenate([_values(gguf, tensors[part]).reshape(shapes[part]) for part in names])
            rounded = torch.from_numpy(values).bfloat16()
            file.put(name, plan[name], rounded.view(torch.uint8).numpy().data.cast("B"))
    show(len(parts), len(parts), target.name)


def sources_of(names: Mapping[str, object]) -> dict[str, list[str]]:
    """For each published tensor, its source tensors in a file, in order; several source tensors are stacked.

    Raises:
        CheckpointFormatError: a slice has an unknown tensor.
    """
    found: dict[str, dict[int, str]] = {}
    for name in names:
        matched = _SLICE.match(name)
        step, target = (
            (0, name) if matched is None else (int(matched[1]), published(int(matched[1]), matched[2]))
        )
        is_shared = matched is not None and ".norm" in target  # every slice has the same
        if not (is_shared and target in found):
            found.setdefault(target, {})[step] = name
    return {target: [parts[step] for step in sorted(parts)] for target, parts in found.items()}


def published(step: int, rest: str) -> str:
    """The published name of the tensor ``rest`` of a depformer step; projections of all steps are one stack.

    Raises:
        CheckpointFormatError: no published name matches.
    """
    if rest == "emb.weight":
        return "depformer_text_emb.weight" if step == 0 else f"depformer_emb.{step - 1}.weight"
    if rest in _FLAT:
        return f"{_FLAT[rest]}.{step}.weight"
    layer = _LAYER.match(rest)
    if layer is None:
        raise CheckpointFormatError(
            f"a depformer's slice holds '{rest}', which is not a part of a language model"
        )
    start, what, end = layer.groups()
    middle = f"{what}.{step}" if what == "gating" else what
    return f"depformer.{start}{middle}.{end}"


def _values(gguf: Any, tensor: Any) -> NDArray[np.float32]:
    """A tensor's values, in any storage format.

    Raises:
        CheckpointFormatError: a format that the package does not read.
    """
    try:
        values: NDArray[np.float32] = gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise CheckpointFormatError(
            f"{tensor.name} is {tensor.tensor_type.name}, which is not supported"
        ) from error
    return np.ascontiguousarray(values, dtype=np.float32)
