"""Sampling of a token from logits: the numpy reference of docs/sampling.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.arrays import FloatArray
from antiphon.errors import UnsupportedError
from antiphon.models.philox import gumbel, random_words
from antiphon.values import ValueRule

IntArray: TypeAlias = NDArray[np.int32]

TEXT_STREAM = 0
"""The stream index of text. Codebook q of the model's own voice (from 0) is stream q + 1."""


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """What one session asks of the sampler. Temperature 0 is greedy, ``repetition_penalty`` 1 is none."""

    text_temperature: float = 0.7
    text_topk: int = 25
    audio_temperature: float = 0.8
    audio_topk: int = 250
    pad_mult: float = 0.0
    repetition_penalty_context: int = 64
    repetition_penalty: float = 1.0
    text_seed: int = 0
    audio_seed: int = 0
    max_steps: int | None = None

    @classmethod
    def from_generation(cls, generation: Mapping[str, Any]) -> SamplingParameters:
        """The defaults a checkpoint asks for in its ``lm_gen_config``, where it has one."""
        given = generation.get("lm_gen_config", {})
        default = cls()
        is_greedy = given.get("use_sampling") is False
        text = given.get("temp_text", given.get("text_temp", default.text_temperature))
        return cls(
            text_temperature=0.0 if is_greedy else float(text),
            text_topk=int(given.get("top_k_text", default.text_topk)),
            audio_temperature=0.0 if is_greedy else float(given.get("temp", default.audio_temperature)),
            audio_topk=int(given.get("top_k", default.audio_topk)),
        )


RULES: Mapping[str, ValueRule] = MappingProxyType(
    {
        "text_temperature": ValueRule(float, 0, 100),
        "text_topk": ValueRule(int, 0, 2**31 - 1),
        "audio_temperature": ValueRule(float, 0, 100),
        "audio_topk": ValueRule(int, 0, 2**31 - 1),
        "pad_mult": ValueRule(float, -1000, 1000),
        "repetition_penalty_context": ValueRule(int, 0, 200),
        "repetition_penalty": ValueRule(float, 0.01, 100),
        "text_seed": ValueRule(int, 0, 2**63 - 1),
        "audio_seed": ValueRule(int, 0, 2**63 - 1),
        "max_steps": ValueRule((int, type(None)), 1, 2**31 - 1),
    }
)
"""What a sampler can be given. Protocols allow their callers less."""


def check_parameters(parameters: SamplingParameters) -> None:
    """Check every parameter against :data:`RULES`. Raises UnsupportedError for one that does not fit."""
    for name, rule in RULES.items():
        if fault := rule.fault(getattr(parameters, name)):
            raise UnsupportedError(f"{name} {fault.words}")


def penalise(logits: FloatArray, recent: IntArray, penalty: FloatArray) -> FloatArray:
    """Make tokens that were said recently less likely, each once: a copy of ``logits`` ``[B, V]``.

    ``recent`` is int32 ``[B, C]``, -1 where there is nothing; ``penalty`` is float32 ``[B]``, 1 for none.
    A positive logit is multiplied by float32(1) / penalty, any other by penalty.
    """
    row, place = np.nonzero((recent >= 0) & (recent < logits.shape[1]))
    token = recent[row, place]
    said = logits[row, token]
    factor = np.where(said > 0, (np.float32(1) / penalty)[row], penalty[row])
    penalised = logits.copy()
    with np.errstate(over="ignore"):
        penalised[row, token] = said * factor  # a repeated token is written twice, with the same value
    return penalised


def sample(
    logits: FloatArray,
    *,
    temperature: ArrayLike,
    topk: ArrayLike,
    seed: ArrayLike,
    step: ArrayLike,
    stream: int,
    pad_id: int | None = None,
    pad_mult: ArrayLike = 0.0,
) -> IntArray:
    """Choose one token a row: float32 ``[B, V]`` gives int32 ``[B]``. No row influences another.

    ``temperature`` (float32, 0 is greedy), ``topk`` (0 is all), ``seed`` (uint64) and ``step`` (from 0
    since the row began) are ``[B]`` or one for all. ``pad_mult`` is added to the logit of ``pad_id``
    after the temperature. NaN counts as minus infinity. Ties go to the lowest id.
    """
    rows, vocabulary = logits.shape
    temperature = np.broadcast_to(np.asarray(temperature, dtype=np.float32), rows)
    seed = np.broadcast_to(np.asarray(seed, dtype=np.uint64), rows)
    step = np.broadcast_to(np.asarray(step, dtype=np.int64), rows)
    scaled = _scale(logits, temperature)
    if pad_id is not None:
        scaled[:, pad_id] += np.asarray(pad_mult, dtype=np.float32)

    kept = np.broadcast_to(np.asarray(topk, dtype=np.int64), rows)
    kept = np.where((kept == 0) | (kept > vocabulary), vocabulary, kept)
    kept = np.where(temperature == 0, 1, kept)  # greedy is the race of one
    tokens = np.empty(rows, dtype=np.int32)
    for k in np.unique(kept):
        group = np.flatnonzero(kept == k)
        block = scaled if len(group) == rows else scaled[group]
        tokens[group] = _race(block, int(k), seed[group], step[group], stream)
    return tokens


def _scale(logits: FloatArray, temperature: FloatArray) -> FloatArray:
    """A copy of the logits, NaN made minus infinity, times float32(1) / temperature where that is not 0."""
    inverse: FloatArray = np.reciprocal(np.where(temperature == 0, np.float32(1), temperature))
    with np.errstate(over="ignore"):  # a huge logit becomes infinite, and wins
        scaled: FloatArray = logits * inverse[:, None]
    scaled[np.isnan(scaled)] = -np.inf
    return scaled


def _race(
    scaled: FloatArray, k: int, seed: NDArray[np.uint64], step: NDArray[np.int64], stream: int
) -> NDArray[np.int64]:
    """The winner among each row's k largest once every candidate has its own Gumbel noise (Gumbel-max)."""
    if k == 1:
        return np.asarray(scaled.argmax(axis=1), dtype=np.int64)
    candidates = largest(scaled, k)
    noise = gumbel(random_words(seed, step, stream, candidates))
    winner = (np.take_along_axis(scaled, candidates, axis=1) + noise).argmax(axis=1)
    return np.take_along_axis(candidates, winner[:, None], axis=1)[:, 0]


def largest(values: FloatArray, k: int) -> NDArray[np.int64]:
    """Indices of the k largest values of each row ``[B, V]``, ascending ``[B, k]``; ties to the lowest."""
    rows, width = values.shape
    if k == width:
        return np.broadcast_to(np.arange(width), (rows, width))
    threshold = np.partition(values, width - k, axis=1)[:, width - k]
    keep = values >= threshold[:, None]
    excess = keep.sum(axis=1) - k
    for row in np.flatnonzero(excess):
        ties = np.flatnonzero(values[row] == threshold[row])
        keep[row, ties[len(ties) - excess[row] :]] = False
    return np.flatnonzero(keep).reshape(rows, k) % width
