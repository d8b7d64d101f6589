"""Per-session sampling on the device, to the norm of ``docs/sampling.md``, without a host sync.

Each row has its own temperature, top-k, seed, padding bonus and repetition penalty, as tensors. What a
row draws depends on nothing but its parameters, its step and its logits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from antiphon.backends.torch.fused import load_tokens
from antiphon.backends.torch.noise import gumbel_noise
from antiphon.backends.torch.state import Step, TensorSpec
from antiphon.errors import UnsupportedError
from antiphon.models.sampling import TEXT_STREAM, SamplingParameters
from antiphon.models.spec import LMSpec

RECENT_WORDS = 256
"""Words remembered for the repetition penalty; a session may ask for 200."""

NARROW_TOPK = 512
"""Top-k up to this is found without sorting the whole vocabulary."""


def choose(logits: Tensor, temperature: Tensor, topk: Tensor, noise: Tensor | None, *, width: int) -> Tensor:
    """Choose a token a row: float32 ``[n, V]`` to int64 ``[n]``.

    ``temperature`` float32 ``[n]`` (0 is greedy), ``topk`` int64 ``[n]`` (0 is all), ``noise`` float32
    ``[n, V]``. ``width`` is at least every top-k that is neither 0 nor above V. ``noise`` None means
    that every row is greedy.
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
    kept = above | (equal & (equal.cumsum(dim=-1) <= spare))  # of equals at the edge, the lowest ids stay
    drawn = (scaled + noise).masked_fill(~kept, -torch.inf)
    return torch.where(is_greedy, scaled.argmax(dim=-1), drawn.argmax(dim=-1))


def penalise(logits: Tensor, recent: Tensor, penalty: Tensor, inverse: Tensor) -> Tensor:
    """Make recent tokens less likely, each once: ``logits [n, V]``, ``recent`` int64 ``[n, C]`` (-1: none).

    A positive logit is multiplied by ``inverse [n]`` (1 / penalty), any other by ``penalty [n]``
    (Keskar et al. 2019).
    """
    rows, vocabulary = logits.shape
    outside = (recent < 0) | (recent >= vocabulary)
    said = torch.zeros(rows, vocabulary + 1, dtype=torch.bool, device=logits.device)
    said = said.scatter(1, recent.masked_fill(outside, vocabulary), value=True)[:, :vocabulary]
    factor = torch.where(logits > 0, inverse[:, None], penalty[:, None])
    return torch.where(said, logits * factor, logits)


class Sampler:
    """The sampling parameters of S rows on a device.

    State ``lm.recent`` int64 ``[RECENT_WORDS]``: the last text tokens that are words, the newest last,
    -1 where there is none. Padding, the end of padding and the initial token are no words.
    """

    def __init__(
        self, spec: LMSpec, rows: int, device: torch.device | str, *, is_fused: bool = False
    ) -> None:
        """Give every row the default parameters; ``is_fused``: noise and voice by Triton kernels."""
        self._spec = spec
        self._kernels = load_tokens() if is_fused else None
        self._not_words = torch.tensor(
            (spec.text_padding_id, spec.text_end_padding_id, spec.text_card), device=device
        )
        self._streams = torch.arange(spec.dep_q, device=device) + (TEXT_STREAM + 1)
        self._given = [SamplingParameters()] * rows
        self._columns = {
            "temperature": torch.ones(2, rows, device=device),
            "inverse_temperature": torch.ones(2, rows, device=device),
            "topk": torch.zeros(2, rows, dtype=torch.int64, device=device),
            "seed": torch.zeros(2, rows, dtype=torch.int64, device=device),
            "penalty": torch.ones(2, rows, device=device),
            "context": torch.zeros(rows, dtype=torch.int64, device=device),
            "pad_mult": torch.zeros(rows, device=device),
        }
        self._audio_noise: dict[int, Tensor] = {}  # of the frame under way, by codebook, until it is used
        # Drawing for nobody costs a CPU time. Elsewhere it would cost a second set of captured graphs.
        self._may_skip_noise = torch.device(device).type == "cpu"
        self.is_greedy = False
        self.width = NARROW_TOPK
        for row in range(rows):
            self.set(row, self._given[row])

    def specs(self) -> Iterator[TensorSpec]:
        """The state the repetition penalty keeps."""
        yield TensorSpec("lm.recent", (RECENT_WORDS,), torch.int64, fill=-1)

    def set(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its parameters, from the next step on.

        Raises:
            UnsupportedError: a repetition penalty that looks back further than is remembered.
        """
        p = parameters
        if p.repetition_penalty_context > RECENT_WORDS:
            raise UnsupportedError(
                f"a repetition penalty over {p.repetition_penalty_context} words, "
                f"but only {RECENT_WORDS} are remembered"
            )
        temperature = np.array((p.text_temperature, p.audio_temperature), dtype=np.float32)
        penalty = np.float32(p.repetition_penalty)
        values = {
            "temperature": temperature,
            "inverse_temperature": np.reciprocal(np.where(temperature == 0, np.float32(1), temperature)),
            "topk": np.array((p.text_topk, p.audio_topk), dtype=np.int64),
            "seed": np.array((p.text_seed, p.audio_seed), dtype=np.uint64).view(np.int64),
            "penalty": np.array((penalty, np.float32(1) / penalty), dtype=np.float32),
            "context": np.array(p.repetition_penalty_context),
            "pad_mult": np.array(p.pad_mult, dtype=np.float32),
        }
        for name, value in values.items():
            self._columns[name][..., row] = torch.from_numpy(value)
        self._given[row] = parameters
        self.is_greedy = self._may_skip_noise and all(
            g.text_temperature == 0 and g.audio_temperature == 0 for g in self._given
        )
        widest = max(max(g.text_topk, g.audio_topk) for g in self._given)
        self.width = NARROW_TOPK if widest <= NARROW_TOPK else max(self._spec.text_card, self._spec.card)

    def get(self, row: int) -> SamplingParameters:
        """The parameters a row has."""
        return self._given[row]

    def text(self, logits: Tensor, step: Step, frames: Tensor) -> Tensor:
        """See :class:`antiphon.backends.torch.generation.TokenChooser`."""
        rows = frames.shape[0]
        column = {name: tensor[..., :rows] for name, tensor in self._columns.items()}
        recent = step.read("lm.recent")
        age = torch.arange(RECENT_WORDS - 1, -1, -1, device=frames.device)
        counted = recent.masked_fill(age >= column["context"][:, None], -1)
        logits = penalise(logits, counted, *column["penalty"])
        scaled = logits * column["inverse_temperature"][0][:, None]
        pad = self._spec.text_padding_id
        is_pad = torch.arange(logits.shape[1], device=logits.device) == pad
        scaled = torch.where(is_pad, scaled + column["pad_mult"][:, None], scaled)
        self._audio_noise.clear()
        noise = None if self.is_greedy else self._draw(frames, column["seed"], logits.shape[1])
        tokens = choose(scaled, column["temperature"][0], column["topk"][0], noise, width=self.width)
        is_word = torch.isin(tokens, self._not_words, invert=True)[:, None]
        step.write(
            "lm.recent", torch.where(is_word, torch.cat([recent[:, 1:], tokens[:, None]], dim=1), recent)
        )
        return tokens

    def audio(self, codebook: int, logits: Tensor, frames: Tensor) -> Tensor:
        """See :class:`antiphon.backends.torch.generation.TokenChooser`."""
        rows = frames.shape[0]
        column = {
            name: self._columns[name][1, :rows] for name in ("temperature", "inverse_temperature", "topk")
        }
        noise = self._audio_noise.pop(codebook, None)
        kernels = self._kernels
        if kernels is not None and noise is not None and logits.shape[1] <= kernels.MOST_TOKENS:
            chosen: Tensor = kernels.chosen_tokens(
                logits, column["inverse_temperature"], column["temperature"], column["topk"], noise
            )
            return chosen
        scaled = logits * column["inverse_temperature"][:, None]
        return choose(scaled, column["temperature"], column["topk"], noise, width=self.width)

    def _draw(self, frames: Tensor, seeds: Tensor, text_card: int) -> Tensor:
        """The text's noise ``[n, text_card]``; the voice's is kept aside until the frame has used it.

        No longer, since in a captured graph it lies in memory that is given to others when the stage ends.
        """
        card, streams = self._spec.card, self._streams
        text = torch.full((1,), TEXT_STREAM, device=frames.device)
        noise = self._noise(seeds[1], frames, streams, card)
        self._audio_noise.update(enumerate(noise.unbind(dim=1)))
        return self._noise(seeds[0], frames, text, text_card)[:, 0]

    def _noise(self, seeds: Tensor, frames: Tensor, streams: Tensor, vocabulary: int) -> Tensor:
        """Float32 ``[n, K, vocabulary]`` of a seed a row."""
        if self._kernels is not None:
            noise: Tensor = self._kernels.drawn_noise(seeds, frames, streams, vocabulary)
            return noise
        return gumbel_noise(seeds[:, None].expand(-1, len(streams)), frames, streams, vocabulary)
