"""Samples tokens on the device by the rules of ``docs/sampling.md``, without a host sync.

Each row has its own temperature, top-k, seed, padding bonus and repetition penalty, as tensors. A row's draw
depends only on its parameters, its step and its logits. Noise is a pure function of (seed, step, stream,
token), so the noise of a whole frame is drawn in one pass before any logits exist. ``antiphon.models.philox``
computes the same in numpy. Here int64 holds words of 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.kernels.fused import load_tokens
from antiphon.backends.torch.state import PackedStep, Step
from antiphon.models.philox import ROUNDS, WORDS_PER_BLOCK
from antiphon.models.sampling import RECENT_WORDS, TEXT_STREAM, RowParameters, SamplingParameters
from antiphon.models.spec import LMSpec

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def _multiply(words: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low words of a product; int64 wraps around, which keeps its 64 bits correct."""
    product = words * factor
    return (product >> 32) & _MASK, product & _MASK


def philox4x32(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> Tensor:
    """Ten rounds of Philox: ``counter`` (four int64 tensors) and ``key`` (two), which broadcast, to ``[...,
    4]``.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack((c0, c1, c2, c3), dim=-1)


def gumbel_noise(seeds: Tensor, frames: Tensor, streams: Tensor, vocabulary: int) -> Tensor:
    """Gumbel noise float32 ``[n, K, vocabulary]``.

    ``seeds`` int64 ``[n, K]`` (the bits of uint64), ``frames`` int64 ``[n]``, ``streams`` int64 ``[K]``.
    """
    blocks = torch.arange(-(-vocabulary // WORDS_PER_BLOCK), device=frames.device)
    step, seed = frames[:, None, None], seeds[:, :, None]
    counter = (step & _MASK, step >> 32, streams[:, None], blocks)
    words = philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))
    uniform = (words.flatten(2)[..., :vocabulary].double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform)).float()


NARROW_TOPK = 512
"""Largest top-k that is found without sorting the whole vocabulary."""


def choose(logits: Tensor, temperature: Tensor, topk: Tensor, noise: Tensor | None, *, width: int) -> Tensor:
    """Choose one token for each row, from logits float32 ``[n, V]`` to int64 ``[n]``.

    ``temperature`` float32 ``[n]`` (0 is greedy), ``topk`` int64 ``[n]`` (0 is all), ``noise`` float32 ``[n,
    V]``. ``width`` is at least as large as every top-k from 1 to V. ``noise`` None means that every row is
    greedy.
    """
    scaled = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    if noise is None:
        return scaled.argmax(dim=-1)
    is_greedy = temperature == 0
    topk = torch.where((topk == 0) | (topk > logits.shape[1]), logits.shape[1], topk)
    best = scaled.topk(min(width, logits.shape[1]), dim=-1).values
    place = (topk - 1).clamp(max=best.shape[1] - 1)[:, None]
    threshold = torch.where((topk > best.shape[1])[:, None], -torch.inf, best.gather(1, place))
    above, equal = scaled > threshold, scaled == threshold
    spare = topk[:, None] - above.sum(dim=-1, keepdim=True)
    kept = above | (equal & (equal.cumsum(dim=-1) <= spare))  # of equal logits the lowest ids are kept
    drawn = (scaled + noise).masked_fill(~kept, -torch.inf)
    return torch.where(is_greedy, scaled.argmax(dim=-1), drawn.argmax(dim=-1))


def penalise(logits: Tensor, recent: Tensor, penalty: Tensor, inverse: Tensor) -> Tensor:
    """Make recent tokens less likely: ``logits [n, V]``, ``recent`` int64 ``[n, C]`` (-1: none).

    A positive logit is multiplied by ``inverse [n]`` (1 / penalty), any other by ``penalty [n]`` (Keskar et
    al. 2019). A token that occurs several times in ``recent`` counts once.
    """
    rows, vocabulary = logits.shape
    outside = (recent < 0) | (recent >= vocabulary)
    said = torch.zeros(rows, vocabulary + 1, dtype=torch.bool, device=logits.device)
    said = said.scatter(1, recent.masked_fill(outside, vocabulary), value=True)[:, :vocabulary]
    factor = torch.where(logits > 0, inverse[:, None], penalty[:, None])
    return torch.where(said, logits * factor, logits)


@dataclass(frozen=True, slots=True)
class _Voice:
    """The sampling values of the current frame's audio: parameters ``[n]``.

    ``noise`` is by codebook, and empty if each row is greedy or kernels draw it.
    """

    temperature: Tensor
    inverse: Tensor
    topk: Tensor
    seed: Tensor
    noise: tuple[Tensor, ...]


class Sampler:
    """Samples the tokens of S rows on a device, each with its own parameters.

    State ``lm.recent`` int64 ``[RECENT_WORDS]``: the last text tokens that are words, the newest last; -1 for
    none. Padding, the end of padding and the initial token are not words.
    """

    def __init__(
        self, spec: LMSpec, rows: int, device: torch.device | str, *, is_fused: bool = False
    ) -> None:
        """Give every row the default parameters; ``is_fused``: Triton kernels make noise and choose audio."""
        self._spec = spec
        self._kernels = load_tokens() if is_fused else None
        self._not_words = torch.tensor(
            (spec.text_padding_id, spec.text_end_padding_id, spec.text_card), device=device
        )
        self._age = torch.arange(RECENT_WORDS - 1, -1, -1, device=device)
        self._text_stream = torch.full((1,), TEXT_STREAM, device=device)
        self._streams = torch.arange(spec.dep_q, device=device) + (TEXT_STREAM + 1)
        self._given = RowParameters(rows)
        # By name, by text and voice, by row; with one extra row as in the state, for places without one.
        self._floats = torch.ones(4, 2, rows + 1, device=device)
        self._integers = torch.zeros(3, 2, rows + 1, dtype=torch.int64, device=device)
        self._voice: _Voice | None = None
        self._device = torch.device(device)
        self.is_greedy = False
        self.width = NARROW_TOPK
        for row in range(rows):
            self._send(row)

    @property
    def is_captured(self) -> bool:
        """Whether the sampler's operations are captured, so that they cannot depend on callers' parameters.

        On a CPU they are not captured: if all rows are greedy no noise is drawn, and a small top-k sorts
        fewer values.
        """
        return self._device.type != "cpu"

    def specs(self) -> Iterator[TensorSpec]:
        """The state of the repetition penalty."""
        yield TensorSpec("lm.recent", (RECENT_WORDS,), torch.int64, fill=-1)

    def set(self, row: int, parameters: SamplingParameters) -> None:
        """Set a row's parameters, from the next step on; see :meth:`RowParameters.set`."""
        self._given.set(row, parameters)
        self._send(row)

    def _send(self, row: int) -> None:
        """Copy a row's parameters to the device."""
        given = self._given
        self._floats[..., row] = torch.from_numpy(given.floats[..., row].copy())
        self._integers[..., row] = torch.from_numpy(given.integers[..., row].copy())
        self.is_greedy = not self.is_captured and not given.floats[0].any()
        is_narrow = not self.is_captured and int(given.integers[0].max()) <= NARROW_TOPK
        self.width = NARROW_TOPK if is_narrow else max(self._spec.text_card, self._spec.card)

    def text(self, logits: Tensor, step: Step, frames: Tensor) -> Tensor:
        """Choose text tokens int64 ``[n]`` from logits ``[n, text_card]`` in the model's dtype; may keep a
        history in the state.
        """
        assert isinstance(step, PackedStep), "parameters are those of a row"
        temperature, inverse, penalty, pad_mult = self._floats.index_select(2, step.at).unbind()
        topk, seed, context = self._integers.index_select(2, step.at).unbind()
        kernels, vocabulary = self._kernels, logits.shape[1]
        if self._spec.dep_q:
            noise: tuple[Tensor, ...] = ()
            if not self.is_greedy and (kernels is None or self._spec.card > kernels.MOST_TOKENS):
                noise = self._noise(seed[1], frames, self._streams, self._spec.card).unbind(dim=1)
            self._voice = _Voice(temperature[1], inverse[1], topk[1], seed[1], noise)
        if kernels is not None and vocabulary <= kernels.MOST_TOKENS:
            words = kernels.TextWeights(
                step.whole("lm.recent"), step.at, inverse[0], *penalty, pad_mult[0], context[0],
                self._spec.text_padding_id,
            )  # fmt: skip
            draw = kernels.Draw(temperature[0], topk[0], seed[0], frames)
            tokens: Tensor = kernels.chosen_tokens(
                kernels.weighed_text(logits, words), None, draw, TEXT_STREAM
            )
            kernels.remember(tokens, words, self._spec.text_end_padding_id, self._spec.text_card)
            return tokens
        text_noise = None
        if not self.is_greedy:
            text_noise = self._noise(seed[0], frames, self._text_stream, vocabulary)[:, 0]
        recent = step.read("lm.recent")
        counted = recent.masked_fill(self._age >= context[0, :, None], -1)
        scaled = penalise(logits.float(), counted, *penalty) * inverse[0, :, None]
        is_pad = torch.arange(logits.shape[1], device=logits.device) == self._spec.text_padding_id
        scaled = torch.where(is_pad, scaled + pad_mult[0, :, None], scaled)
        tokens = choose(scaled, temperature[0], topk[0], text_noise, width=self.width)
        is_word = torch.isin(tokens, self._not_words, invert=True)[:, None]
        step.write(
            "lm.recent", torch.where(is_word, torch.cat([recent[:, 1:], tokens[:, None]], dim=1), recent)
        )
        return tokens

    def audio(self, codebook: int, logits: Tensor, frames: Tensor) -> Tensor:
        """Choose tokens of one codebook, int64 ``[n]``, from logits ``[n, card]``; a frame's codebooks are
        passed in order.
        """
        voice, kernels = self._voice, self._kernels
        assert voice is not None, "text comes first"
        if codebook == self._spec.dep_q - 1:
            self._voice = None  # a captured graph reuses its memory afterwards
        if kernels is not None and not voice.noise:
            draw = kernels.Draw(voice.temperature, voice.topk, voice.seed, frames)
            chosen: Tensor = kernels.chosen_tokens(logits, voice.inverse, draw, TEXT_STREAM + 1 + codebook)
            return chosen
        scaled = logits.float() * voice.inverse[:, None]  # the kernel converts the values that it reads
        noise = voice.noise[codebook] if voice.noise else None
        return choose(scaled, voice.temperature, voice.topk, noise, width=self.width)

    def _noise(self, seeds: Tensor, frames: Tensor, streams: Tensor, vocabulary: int) -> Tensor:
        """Float32 ``[n, K, vocabulary]`` of a seed per row."""
        return gumbel_noise(seeds[:, None].expand(-1, len(streams)), frames, streams, vocabulary)
