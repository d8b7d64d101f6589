"""The gate's measures: of logits (likelihood, divergence, first choices, critical tokens) and of files.

The files of two checkpoints are compared without running the models: arguments, delays, tokenizer, and
weights by tensor.
"""

from __future__ import annotations

import filecmp
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import FloatArray
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.spec import LMSpec
from antiphon_quantize.gate_subject import Codes, Logits

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.floating[Any]]

SPEED = "speed ratio"
"""The name of the measure of step times: the time of the candidate's step divided by the baseline's."""
IN_PLAY = 0.001
"""Probability below which, in both models, a token is an unlikely choice and may change freely."""
SETTLED = 0.999
"""Probability above which, in both models, a token is certain to be chosen."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number about a candidate: ``value`` None means not measured, and ``detail`` is the reason.

    ``baseline`` and ``candidate`` are its two inputs, if it has two.
    """

    name: str
    value: float | None
    baseline: float | None = None
    candidate: float | None = None
    detail: str = ""


def not_measured(name: str, why: str) -> Measure:
    """A measure that was not measured, with the reason."""
    return Measure(name, None, detail=why)


def measure_logits(a: Logits, b: Logits, forced_tokens: Codes, spec: LMSpec) -> Iterator[Measure]:
    """Compare the logits of the candidate ``b`` with the baseline ``a``, both computed with the forced output
    ``forced_tokens``.

    ``forced_tokens`` is int64 ``[n, F, 1 + dep_q]``, -1 for no token. The measures are the worst stream's
    share of logits that are not finite, and for each stream: the rise of the negative log-likelihood of
    ``forced_tokens`` and the Kullback-Leibler divergence from the baseline, both in nats a token, and the
    share of equal first choices.
    """
    frames = min(a.text.shape[1], b.text.shape[1], forced_tokens.shape[1])
    pairs = list(zip(a.streams(), b.streams(), strict=True))
    broken = {name: float(1 - np.isfinite(other).mean()) for (name, _), (_, other) in pairs}
    told = ", ".join(name for name, share in broken.items() if share)
    yield Measure("logits nonfinite", max(broken.values()), detail=told)
    for index, ((name, one), (_, other)) in enumerate(pairs):
        parts = one[:, :frames], other[:, :frames], forced_tokens[:, :frames, index]
        rows = [_row(*row) for row in zip(*parts, strict=True)]
        before, after, divergence, agreement = (float(np.mean(column)) for column in zip(*rows, strict=True))
        yield Measure(f"{name} nll", after - before, before, after)
        yield Measure(f"{name} kl", divergence)
        yield Measure(f"{name} agreement", agreement)
    tokens = {"padding": spec.text_padding_id, "end of padding": spec.text_end_padding_id}
    yield from measure_tokens(a.text[:, :frames], b.text[:, :frames], tokens)
    if a.pauses.shape[2]:
        moved = b.pauses[:, :frames].astype(np.float64) - a.pauses[:, :frames]
        worst = int(np.abs(moved).max(axis=(0, 1)).argmax())
        yield Measure("pauses shift", _size(moved.mean()), detail="of the probability, in the mean")
        yield Measure("pauses worst", _size(np.abs(moved).max()), detail=f"head {worst}")


def _row(a: FloatArray, b: FloatArray, forced_tokens: Codes) -> tuple[float, float, float, float]:
    """Two likelihoods, divergence and agreement of one row, a row at a time to save memory.

    Frames before the first token, including padding, have -1, and do not count.
    """
    a, b, forced_tokens = a[forced_tokens >= 0], b[forced_tokens >= 0], forced_tokens[forced_tokens >= 0]
    if not np.isfinite(b).all() or not np.isfinite(a).all():
        return math.nan, math.nan, math.nan, math.nan
    one, other = log_softmax(a), log_softmax(b)
    chosen = forced_tokens[:, None]
    before, after = (-np.take_along_axis(part, chosen, axis=1).mean() for part in (one, other))
    divergence = (np.exp(one) * (one - other)).sum(axis=1).mean()
    return float(before), float(after), float(divergence), float((a.argmax(1) == b.argmax(1)).mean())


def measure_tokens(a: FloatArray, b: FloatArray, tokens: Mapping[str, int]) -> Iterator[Measure]:
    """Measure how the probabilities of single tokens change: the mean change and the largest change.

    The mean is the mean change of log-odds over the frames in which the token is neither excluded nor
    certain. A shifted logit changes them equally in every frame; rounding changes them in both directions, so
    the mean is small. The largest change is the change of a log-probability.
    """
    for what, token in tokens.items():
        one, other = (
            np.stack(
                [
                    log_softmax(row)[:, token] if np.isfinite(row).all() else np.full(len(row), math.nan)
                    for row in part
                ]
            )
            for part in (a, b)
        )
        moved = other - one
        is_lost, is_heard = np.isnan(moved), np.maximum(one, other) > math.log(IN_PLAY)
        is_open = is_heard & (np.minimum(one, other) < math.log(SETTLED)) | is_lost
        worst = np.abs(moved[is_heard | is_lost]).max(initial=0.0)
        if is_open.any():
            shifts = (log_odds(other) - log_odds(one))[is_open]
            way = "likelier" if shifts.mean() > 0 else "less likely"
            give = f"give or take {shifts.std() / math.sqrt(shifts.size):.2f}, in {shifts.size} frames"
            yield Measure(f"text {what} shift", _size(shifts.mean()), detail=f"{way}, {give}")
        else:
            yield not_measured(f"text {what} shift", "the token is excluded or certain in every frame")
        yield Measure(f"text {what} worst", float(worst), detail=f"of {int(is_heard.sum())} frames")


def log_odds(log_probability: Floats) -> Floats:
    """``log(p / (1 - p))``; a probability of 1 counts as 1 - 10^-12."""
    odds: Floats = log_probability - np.log1p(-np.exp(np.minimum(log_probability, -1e-12)))
    return odds


def _size(value: np.floating[Any]) -> float:
    return abs(float(value))


def log_softmax(logits: FloatArray) -> NDArray[np.float64]:
    """The logarithm of the softmax over the last axis, float64 ``[..., V]``."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


NAMED = 3
"""The number of worst tensors that the detail lists."""


def measure_arguments(a: Checkpoint, b: Checkpoint) -> Iterator[Measure]:
    """Measure the differences in delays, arguments and text tokenizer."""
    if a.spec.lm is None or b.spec.lm is None:
        return
    delays = enumerate(zip(a.spec.lm.delays, b.spec.lm.delays, strict=True))
    yield _counted(
        "delays", [f"stream {it} has {other}, not {one}" for it, (one, other) in delays if one != other]
    )
    one, other = a.spec.lm.config, b.spec.lm.config
    changed = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
    named = [key for key in changed if key not in ("delays", "quantize")]
    yield _counted("arguments", [f"{key} is {other.get(key)!r}, not {one.get(key)!r}" for key in named])
    if "tokenizer" in a.files and "tokenizer" in b.files:
        differs = not filecmp.cmp(a.file("tokenizer"), b.file("tokenizer"), shallow=False)
        yield _counted("tokenizer", ["another file"] if differs else [])
    elif "tokenizer" in a.files or "tokenizer" in b.files:
        yield _counted("tokenizer", ["only one of the two models has a tokenizer"])


def _counted(name: str, changes: list[str]) -> Measure:
    return Measure(name, float(len(changes)), detail="; ".join(changes[:NAMED]))


def same_codec(a: Checkpoint, b: Checkpoint, backend: str) -> bool:
    """Whether the parts of two checkpoints' codecs that a backend reads are equal byte for byte."""
    roles = ["mimi"]
    if backend == "onnx":
        roles = [form.file for name, form in a.graphs.items() if name in ("encode", "decode")]
    pairs = [(a.files.get(role), b.files.get(role)) for role in roles]
    same = all(one and other and filecmp.cmp(one, other, shallow=False) for one, other in pairs)
    return same and a.spec.mimi == b.spec.mimi


def measure_weights(a: Path, b: Path) -> Iterator[Measure]:
    """The largest relative change (a ratio of norms) of a tensor between two published language models, with
    the tensor's name.

    INT8 weights are compared with their scales applied. The detail has the worst tensors and their gain, the
    factor of the change: 1.1 if scales are a tenth too large. One tensor is in memory at a time.
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
            before, after = pair
            if not after.isfinite().all():
                broken.append(name)
            elif size := float((before * before).sum()):
                change = float((after - before).norm()) / math.sqrt(size)
                changes.append((change, float((before * after).sum()) / size, name))
            else:
                changes.append((math.inf if after.any() else 0.0, 1.0, name))
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
    """A tensor's values in both files, or None if they cannot be compared."""
    from antiphon.backends.torch.weights import dequantized

    if name not in b or name.endswith(("_scale", "_scb")):
        return None
    one, other = dequantized(a, name), dequantized(b, name)
    if one.shape != other.shape or not (one.is_floating_point() and other.is_floating_point()):
        return None
    return one.double(), other.double()
