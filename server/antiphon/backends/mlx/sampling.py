"""Samples tokens by the rules of ``docs/sampling.md``: the host draws noise, the device chooses tokens.

The noise does not depend on logits, so the host makes it while the device computes the frame. The host's
noise is also exact to the last bit: its logarithms need float64, which Apple's GPUs lack.

Each row has its own temperature, top-k, seed, padding bonus and repetition penalty. A row's draw depends only
on its parameters, its step and its logits. None of this is compiled: the rules require separate rounding of
every operation, and a compiler may fuse a product into a sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from antiphon.backends.mlx.state import Packed, Packing
from antiphon.backends.snapshots import TensorSpec
from antiphon.models.philox import gumbel_table
from antiphon.models.sampling import RECENT_WORDS, TEXT_STREAM, RowParameters, SamplingParameters
from antiphon.models.spec import LMSpec


def choose(
    logits: mx.array, temperature: mx.array, topk: mx.array, noise: mx.array | None, *, width: int
) -> mx.array:
    """Choose one token for each row, from scaled logits float32 ``[n, V]`` to int32 ``[n]``.

    ``temperature`` float32 ``[n]`` (0 is greedy), ``topk`` int32 ``[n]`` (1 to V, at most ``width``).
    ``noise`` float32 ``[n, V]``; None means that every row is greedy.
    """
    scaled = mx.where(mx.isnan(logits), -mx.inf, logits)
    best = mx.argmax(scaled, axis=-1)
    if noise is None:
        return best.astype(mx.int32)
    narrowed = scaled if width == logits.shape[1] else mx.topk(scaled, width, axis=-1)
    ascending = mx.sort(narrowed, axis=-1)
    threshold = mx.take_along_axis(ascending, width - topk[:, None], axis=-1)
    above, equal = scaled > threshold, scaled == threshold
    spare = topk[:, None] - above.sum(axis=-1, keepdims=True)
    # Of equal logits at the threshold, the lowest ids are kept.
    kept = above | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= spare))
    drawn = mx.where(kept, scaled + noise, -mx.inf)
    return mx.where(temperature == 0, best, mx.argmax(drawn, axis=-1)).astype(mx.int32)


def penalise(logits: mx.array, recent: mx.array, penalty: mx.array, inverse: mx.array) -> mx.array:
    """Make recent tokens less likely: ``logits [n, V]``, ``recent`` int32 ``[n, C]`` (-1: none).

    A positive logit is multiplied by ``inverse [n]`` (1 / penalty), any other by ``penalty [n]`` (Keskar et
    al. 2019). A token that occurs several times in ``recent`` counts once.
    """
    rows, vocabulary = logits.shape
    outside = (recent < 0) | (recent >= vocabulary)
    said = mx.zeros((rows, vocabulary + 1), dtype=mx.bool_)
    said = mx.put_along_axis(said, mx.where(outside, vocabulary, recent), mx.array(True), axis=1)
    factor = mx.where(logits > 0, inverse[:, None], penalty[:, None])
    return mx.where(said[:, :vocabulary], logits * factor, logits)


@dataclass(frozen=True, slots=True)
class Draw:
    """The sampling values of one tick: the parameters of its n rows as columns, and the frame's noise.

    ``text_noise`` float32 ``[n, text vocabulary]`` and ``audio_noise`` ``[n, dep_q, card]``; None if every
    row is greedy.
    """

    columns: Mapping[str, mx.array]
    text_noise: mx.array | None
    audio_noise: mx.array | None


class Sampler:
    """Samples the tokens of S rows, each with its own parameters.

    State ``lm.recent`` int32 ``[RECENT_WORDS]``: the last text tokens that are words, the newest last; -1 for
    none. Padding, the end of padding and the initial token are not words.
    """

    def __init__(self, spec: LMSpec, rows: int) -> None:
        """Give every row the default parameters."""
        self._spec = spec
        self._text_vocabulary = int(spec.config.get("text_card_out") or spec.text_card)
        self._not_words = mx.array((spec.text_padding_id, spec.text_end_padding_id, spec.text_card))
        self._streams = np.arange(spec.dep_q, dtype=np.int64) + (TEXT_STREAM + 1)
        self._given = RowParameters(rows)
        self._columns: dict[str, NDArray[np.generic]] = {}
        self._has_penalty = False
        self._widths = (1, 1)
        self._refresh()

    def specs(self) -> Iterator[TensorSpec]:
        """The state of the repetition penalty."""
        yield TensorSpec("lm.recent", (RECENT_WORDS,), mx.int32, fill=-1)

    def set(self, row: int, parameters: SamplingParameters) -> None:
        """Set a row's parameters, from the next step on; see :meth:`RowParameters.set`."""
        self._given.set(row, parameters)
        self._refresh()

    def _refresh(self) -> None:
        """The parameters of all rows as columns."""
        temperature, inverse, penalty, pad_mult = self._given.floats
        topk, _, context = self._given.integers.astype(np.int32)
        vocabulary = np.array([[self._text_vocabulary], [self._spec.card]], np.int32)
        topk = np.where((topk == 0) | (topk > vocabulary), vocabulary, topk)
        topk[temperature == 0] = 1  # for any requested parameters
        self._columns = {
            "temperature": temperature,
            "inverse_temperature": inverse,
            "topk": topk,
            "penalty": penalty,
            "context": context[0],
            "pad_mult": pad_mult[0],
        }
        self._widths = (int(topk[0].max()), int(topk[1].max()))
        self._has_penalty = bool((penalty[0] != 1).any())

    def draw(self, packing: Packing, frames: NDArray[np.int64], *, is_silent: bool = False) -> Draw:
        """The sampling values of a tick computed by the host; ``frames [m]`` counts the frames that each row
        has taken.

        With ``is_silent`` no audio is chosen.
        """
        columns = {name: mx.array(column[..., packing.rows]) for name, column in self._columns.items()}
        text = self._noise(0, packing, frames, np.array([TEXT_STREAM]), self._text_vocabulary)
        audio = None
        if self._spec.dep_q and not is_silent:
            audio = self._noise(1, packing, frames, self._streams, self._spec.card)
        return Draw(columns, None if text is None else text[:, 0], audio)

    def _noise(
        self,
        column: int,
        packing: Packing,
        frames: NDArray[np.int64],
        streams: NDArray[np.int64],
        width: int,
    ) -> mx.array | None:
        drawn = np.flatnonzero(self._given.floats[0, column, packing.named])
        if not drawn.size:
            return None
        noise = np.zeros((packing.size, len(streams), width), np.float32)
        seeds = self._given.seeds[column, packing.named]
        for at in drawn.tolist():  # one at a time: several rows' numbers do not fit into a core's cache
            noise[packing.places[at]] = gumbel_table(seeds[at : at + 1], frames[at : at + 1], streams, width)[
                0
            ]
        return mx.array(noise)

    def text(self, logits: mx.array, step: Packed, draw: Draw) -> mx.array:
        """Choose a text token for each row of ``[n, V]``, and store recent words; returns int32 ``[n]``."""
        column, recent, logits = draw.columns, step.read("lm.recent"), logits.astype(mx.float32)
        if self._has_penalty:
            age = mx.arange(RECENT_WORDS - 1, -1, -1)
            counted = mx.where(age >= column["context"][:, None], -1, recent)
            logits = penalise(logits, counted, *column["penalty"])
        scaled = logits * column["inverse_temperature"][0][:, None]
        is_pad = mx.arange(logits.shape[1]) == self._spec.text_padding_id
        scaled = mx.where(is_pad, scaled + column["pad_mult"][:, None], scaled)
        tokens = choose(
            scaled, column["temperature"][0], column["topk"][0], draw.text_noise, width=self._widths[0]
        )
        is_word = mx.all(tokens[:, None] != self._not_words, axis=1, keepdims=True)
        shifted = mx.concatenate([recent[:, 1:], tokens[:, None]], axis=1)
        step.write("lm.recent", mx.where(is_word, shifted, recent))
        return tokens

    def audio(self, codebook: int, logits: mx.array, draw: Draw) -> mx.array:
        """Choose a token of one codebook for each row: ``[n, card]`` in any dtype to int32 ``[n]``."""
        temperature, inverse, topk = (
            draw.columns[name][1] for name in ("temperature", "inverse_temperature", "topk")
        )
        noise = None if draw.audio_noise is None else draw.audio_noise[:, codebook]
        scaled = logits.astype(mx.float32) * inverse[:, None]
        return choose(scaled, temperature, topk, noise, width=self._widths[1])
