"""Samples tokens from logits, as the numpy reference of docs/sampling.md, with the parameters of S
rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphon.arrays import FloatArray
from antiphon.errors import UnsupportedError
from antiphon.models.philox import gumbel, gumbel_table, random_words
from antiphon.models.spec import LMSpec
from antiphon.values import ValueRule

RECENT_WORDS: Final = 256
"""Number of words kept for the repetition penalty, the largest number that a session may request."""


class RowParameters:
    """The sampling parameters of each row; see docs/sampling.md.

    The axes are the parameter, text and audio, and the row. ``floats`` float32 ``[4, 2, S]`` are temperature,
    its inverse (1 where it is 0), the penalty and its inverse, and the text's pad_mult. ``integers`` int64
    ``[3, 2, S]`` are top-k, the seed's 64 bits, and the number of words in the text's penalty: 0 for a
    penalty of 1, so that no token is compared with a word.
    """

    def __init__(self, rows: int) -> None:
        """Give every row the default parameters."""
        self.floats: NDArray[np.float32] = np.zeros((4, 2, rows), np.float32)
        self.integers: NDArray[np.int64] = np.zeros((3, 2, rows), np.int64)
        for row in range(rows):
            self.set(row, SamplingParameters())

    def set(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its parameters.

        Raises:
            UnsupportedError: the repetition penalty covers more words than the state keeps.
        """
        p = parameters
        if p.repetition_penalty_context > RECENT_WORDS:
            raise UnsupportedError(
                f"a repetition penalty over {p.repetition_penalty_context} words, "
                f"but only {RECENT_WORDS} are kept"
            )
        temperature = np.array((p.text_temperature, p.audio_temperature), np.float32)
        penalty = np.float32(p.repetition_penalty)
        self.floats[0, :, row] = temperature
        self.floats[1, :, row] = np.reciprocal(np.where(temperature == 0, np.float32(1), temperature))
        self.floats[2, :, row] = penalty, np.float32(1) / penalty
        self.floats[3, 0, row] = p.pad_mult
        self.integers[0, :, row] = p.text_topk, p.audio_topk
        self.integers[1, :, row] = np.array((p.text_seed, p.audio_seed), np.uint64).view(np.int64)
        self.integers[2, 0, row] = p.repetition_penalty_context if penalty != 1 else 0

    @property
    def seeds(self) -> NDArray[np.uint64]:
        """The seeds of text and audio, ``[2, S]``."""
        seeds: NDArray[np.uint64] = self.integers[1].view(np.uint64)
        return seeds


IntArray: TypeAlias = NDArray[np.int32]

TEXT_STREAM = 0
"""The stream index of text. Codebook q of the model's own voice (from 0) is stream q + 1."""


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """The sampling parameters of one session. Temperature 0 means greedy, ``repetition_penalty`` 1 means no
    penalty.
    """

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
        """The default parameters of a checkpoint, from its ``lm_gen_config`` if it has one."""
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
"""The allowed values of a sampler. Protocols have narrower ranges for clients."""


def check_parameters(parameters: SamplingParameters) -> None:
    """Check every parameter against :data:`RULES`. Raises UnsupportedError for an invalid one."""
    for name, rule in RULES.items():
        if fault := rule.fault(getattr(parameters, name)):
            raise UnsupportedError(f"{name} {fault.words}")


def penalise(logits: FloatArray, recent: IntArray, penalty: FloatArray) -> FloatArray:
    """Lower the logits of recent tokens in a copy of ``logits`` ``[B, V]``; a repeated token counts once.

    ``recent`` is int32 ``[B, C]`` (-1: no token); ``penalty`` is float32 ``[B]`` (1: no penalty). A positive
    logit is multiplied by float32(1) / penalty, any other by penalty.
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
    """Choose one token for each row, from logits float32 ``[B, V]`` to int32 ``[B]``. No row influences
    another.

    ``temperature`` (float32, 0 is greedy), ``topk`` (0 is all), ``seed`` (uint64) and ``step`` (from 0 since
    the row's start) are ``[B]``, or one value for all rows. ``pad_mult`` is added to the logit of ``pad_id``
    after the temperature. NaN counts as minus infinity. Ties select the lowest id.
    """
    rows, vocabulary = logits.shape
    temperature = np.broadcast_to(np.asarray(temperature, dtype=np.float32), rows)
    seed = np.broadcast_to(np.asarray(seed, dtype=np.uint64), rows)
    step = np.broadcast_to(np.asarray(step, dtype=np.int64), rows)
    inverse = np.reciprocal(np.where(temperature == 0, np.float32(1), temperature))
    with np.errstate(over="ignore"):  # a huge logit becomes infinite and is chosen
        scaled: FloatArray = logits * inverse[:, None]
    scaled[np.isnan(scaled)] = -np.inf
    if pad_id is not None:
        scaled[:, pad_id] += np.asarray(pad_mult, dtype=np.float32)

    kept = np.broadcast_to(np.asarray(topk, dtype=np.int64), rows)
    kept = np.where((kept == 0) | (kept > vocabulary), vocabulary, kept)
    kept = np.where(temperature == 0, 1, kept)  # greedy is a choice of one token
    tokens = np.empty(rows, dtype=np.int32)
    for k in np.unique(kept):
        group = np.flatnonzero(kept == k)
        block = scaled if len(group) == rows else scaled[group]
        tokens[group] = _race(block, int(k), seed[group], step[group], stream)
    return tokens


def _race(
    scaled: FloatArray, k: int, seed: NDArray[np.uint64], step: NDArray[np.int64], stream: int
) -> NDArray[np.int64]:
    """The largest of each row's top k after each candidate gets its own Gumbel noise (Gumbel-max)."""
    if k == 1:
        return np.asarray(scaled.argmax(axis=1), dtype=np.int64)
    candidates = largest(scaled, k)
    noise = gumbel(random_words(seed, step, stream, candidates))
    winner = (np.take_along_axis(scaled, candidates, axis=1) + noise).argmax(axis=1)
    return np.take_along_axis(candidates, winner[:, None], axis=1)[:, 0]


def largest(values: FloatArray, k: int) -> NDArray[np.int64]:
    """Indices of the k largest values of each row ``[B, V]``, ascending ``[B, k]``; ties select the lowest
    index.
    """
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


TEXT, AUDIO = 0, 1
"""The column of each parameter."""


class RowSampler:
    """Chooses the tokens of each row by that row's own parameters, seeds and step.

    A call names its rows, int32 ``[m]``, each once; all arrays are in the order of these rows.

    State, row first: ``words`` int32 ``[rows, RECENT_WORDS]``: the text for the repetition penalty, with the
    newest word last and -1 for no word (docs/sampling.md, section 4).
    """

    def __init__(self, spec: LMSpec, rows: int) -> None:
        """Make ``rows`` fresh rows with default parameters."""
        self._no_words = (spec.text_padding_id, spec.text_end_padding_id, spec.text_card)
        self._pad_id = spec.text_padding_id
        self._given = RowParameters(rows)
        self._words: IntArray = np.full((rows, RECENT_WORDS), -1, dtype=np.int32)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its parameters; see :meth:`RowParameters.set`."""
        self._given.set(row, parameters)

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Clear the rows' words; their parameters stay."""
        self._words[list(rows)] = -1

    def text(self, rows: IntArray, logits: FloatArray, steps: NDArray[np.int64]) -> IntArray:
        """Choose a text token for each row, int32 ``[m]``, and store it for the repetition penalty unless it
        is padding.

        ``logits`` is float32 ``[m, text_card]``, ``steps`` int64 ``[m]`` is the number of steps of each row
        since its reset.
        """
        given = self._given
        chosen = sample(
            self._penalised(logits, rows),
            temperature=given.floats[0, TEXT, rows],
            topk=given.integers[0, TEXT, rows],
            seed=given.seeds[TEXT, rows],
            step=steps,
            stream=TEXT_STREAM,
            pad_id=self._pad_id,
            pad_mult=given.floats[3, TEXT, rows],
        )
        said = ~np.isin(chosen, self._no_words)
        speaking = rows[said]
        self._words[speaking, :-1] = self._words[speaking, 1:]
        self._words[speaking, -1] = chosen[said]
        return chosen

    def voice(self, rows: IntArray, logits: FloatArray, steps: NDArray[np.int64], codebook: int) -> IntArray:
        """Choose a token of one codebook for each row, int32 ``[m]``."""
        return sample(
            logits,
            temperature=self._given.floats[0, AUDIO, rows],
            topk=self._given.integers[0, AUDIO, rows],
            seed=self._given.seeds[AUDIO, rows],
            step=steps,
            stream=TEXT_STREAM + 1 + codebook,
        )

    def voice_race(
        self, rows: IntArray, steps: NDArray[np.int64], noise: FloatArray
    ) -> tuple[FloatArray, NDArray[np.int64]]:
        """The inputs for sampling a frame's audio tokens on the device, except for the logits.

        ``noise`` float32 ``[m, codebooks, card]`` is filled. Returns for each row ``1 / temperature``
        (float32) and the top-k (int64, from 1 to ``card``). The token is the one with the largest ``logit /
        temperature + noise`` among the top k. For a greedy row it is the one with the largest logit.
        """
        _, codebooks, card = noise.shape
        topk = self._given.integers[0, AUDIO, rows]
        is_greedy = self._given.floats[0, AUDIO, rows] == 0
        noise[is_greedy] = 0
        streams = TEXT_STREAM + 1 + np.arange(codebooks)
        drawn = ~is_greedy
        if drawn.any():
            noise[drawn] = gumbel_table(self._given.seeds[AUDIO, rows[drawn]], steps[drawn], streams, card)
        topk = np.where((topk == 0) | (topk > card), card, topk)
        return self._given.floats[1, AUDIO, rows], np.where(is_greedy, 1, topk)

    def snapshot(self, row: int) -> dict[str, NDArray[np.generic]]:
        """Copy one row's state, by name, without the row axis."""
        return {"words": self._words[row].copy()}

    def restore(self, row: int, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Put a copied state into a row."""
        self._words[row] = state["words"]

    @property
    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        return self._words.nbytes

    def _penalised(self, logits: FloatArray, rows: IntArray) -> FloatArray:
        penalty, context = self._given.floats[2, 0, rows], self._given.integers[2, 0, rows]
        if np.all((penalty == 1) | (context == 0)):
            return logits
        age = np.arange(RECENT_WORDS)[::-1]
        recent = np.where(age < context[:, None], self._words[rows], -1)
        return penalise(logits, recent, penalty)
