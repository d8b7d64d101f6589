"""The comparison of two checkpoints' files, without running them: arguments, delays, tokenizer, weights by
tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.models.checkpoint import Checkpoint
from antiphon.models.spec import LMSpec
from antiphon_quantize.gate_measures import Measure, not_measured

if TYPE_CHECKING:
    from torch import Tensor

NAMED = 3
"""The number of worst tensors that are named."""


def measure_arguments(a: Checkpoint, b: Checkpoint) -> Iterator[Measure]:
    """Delays, arguments and text tokenizer: how many differ."""
    if a.spec.lm is None or b.spec.lm is None:
        return
    yield _counted("delays", list(_delays(a.spec.lm, b.spec.lm)))
    yield _counted("arguments", list(_arguments(a.spec.lm, b.spec.lm)))
    if "tokenizer" in a.files and "tokenizer" in b.files:
        differs = not same_file(a.file("tokenizer"), b.file("tokenizer"))
        yield _counted("tokenizer", ["another file"] if differs else [])
    elif "tokenizer" in a.files or "tokenizer" in b.files:
        yield _counted("tokenizer", ["only one of the two has one"])


def _counted(name: str, changes: list[str]) -> Measure:
    return Measure(name, float(len(changes)), detail="; ".join(changes[:NAMED]))


def _delays(a: LMSpec, b: LMSpec) -> Iterator[str]:
    for stream, (one, other) in enumerate(zip(a.delays, b.delays, strict=True)):
        if one != other:
            yield f"stream {stream} has {other}, not {one}"


def _arguments(a: LMSpec, b: LMSpec) -> Iterator[str]:
    for key in sorted(a.config.keys() | b.config.keys()):
        one, other = a.config.get(key), b.config.get(key)
        if one != other and key not in ("delays", "quantize"):
            yield f"{key} is {other!r}, not {one!r}"


def same_file(a: Path, b: Path) -> bool:
    """Whether two files hold the same bytes."""
    if a.stat().st_size != b.stat().st_size:
        return False
    with a.open("rb") as one, b.open("rb") as other:
        while chunk := one.read(1 << 20):
            if chunk != other.read(1 << 20):
                return False
    return True


def same_codec(a: Checkpoint, b: Checkpoint, backend: str) -> bool:
    """Whether two checkpoints have one codec, byte for byte, as far as a backend reads it."""
    roles = ["mimi"]
    if backend == "onnx":
        roles = [form.file for name, form in a.graphs.items() if name in ("encode", "decode")]
    pairs = [(a.files.get(role), b.files.get(role)) for role in roles]
    same = all(one is not None and other is not None and same_file(one, other) for one, other in pairs)
    return same and a.spec.mimi == b.spec.mimi


def measure_weights(a: Path, b: Path) -> Iterator[Measure]:
    """Two published language models' tensors of the same names: the largest relative change (norms), named.

    INT8 weights are taken with their scales. The detail gives the worst tensors and their gain, which is the
    factor that the change amounts to: 1.1 if scales are a tenth too large. A tensor is in memory at a time.
    """
    from safetensors import safe_open

    broken: list[str] = []
    changes: list[tuple[float, float, str]] = []
    with safe_open(a, framework="pt") as one, safe_open(b, framework="pt") as other:
        here, there = _Tensors(one), _Tensors(other)
        for name in here:
            pair = _pair(here, there, name)
            if pair is None:
                continue
            if pair[1].isfinite().all():
                changes.append((*_change(*pair), name))
            else:
                broken.append(name)
    yield Measure("weights nonfinite", float(len(broken)), detail=", ".join(broken[:NAMED]))
    if not changes:
        yield not_measured("weights change", "no tensor has the same form in both")
        return
    changes.sort(reverse=True)
    told = [f"{name} (gain {gain:.3f})" for change, gain, name in changes[:NAMED] if change > 0]
    yield Measure("weights change", changes[0][0], detail=", ".join(told))


class _Tensors(Mapping[str, "Tensor"]):
    """An open safetensors file, read tensor by tensor."""

    def __init__(self, file: Any) -> None:
        self._file, self._names = file, frozenset(file.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)


def _pair(a: Mapping[str, Tensor], b: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor] | None:
    """A tensor's values in both files, or None where they cannot be held against each other."""
    from antiphon.backends.torch.weights.lm_weights import dequantized

    if name not in b or name.endswith(("_scale", "_scb")):
        return None
    one, other = dequantized(a, name), dequantized(b, name)
    if one.shape != other.shape or not (one.is_floating_point() and other.is_floating_point()):
        return None
    return one.double(), other.double()


def _change(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Relative change and gain."""
    size = float((a * a).sum())
    if not size:
        return (math.inf if b.any() else 0.0), 1.0
    return float((b - a).norm()) / math.sqrt(size), float((a * b).sum()) / size
