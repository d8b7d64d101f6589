"""One tick on the device: encode, the language model, decode, over static buffers.

The kinds differ only in which stages they have: codec encodes and decodes, stt encodes and listens,
duplex does all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.mimi import Mimi
from antiphon.backends.torch.sampling import Sampler
from antiphon.backends.torch.state import State, Step, TensorSpec
from antiphon.models.spec import ModelSpec, PipelineKind


class MaskedStage(Protocol):
    """A stage over rows ``0 .. rows-1``, none of which has seen more than ``filled`` frames."""

    def __call__(self, rows: int, filled: int, *, masked: bool) -> None:
        """Run it; ``masked`` says whether some rows take no part."""
        ...


FLAGS, RESET, EXECUTE, EMIT = 3, -3, -2, -1
"""How many columns of ``Buffers.arrived`` are no PCM, and which they are."""

PAUSE_INDEX = 0
"""The entry of an extra head's softmax that is the probability of a pause."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Where a tick's data lies on the device, row first, at the same address every tick.

    ``arrived`` float32 ``[S, frame_samples + 3]``: PCM, then 1 or 0 for "reset", "execute" and "emit".
    ``codes`` int64 ``[S, K]`` heard, ``voice`` int64 ``[S, L]`` to be spoken. ``leaving`` float32
    ``[S, frame_samples + 1 + heads]``: PCM, the text token as the bits of an int32 (a float32 would round
    what carries two texts), pause probabilities. One transfer each way.
    """

    arrived: Tensor
    codes: Tensor
    voice: Tensor
    leaving: Tensor

    @classmethod
    def make(cls, spec: ModelSpec, rows: int, device: torch.device) -> Buffers:
        """Allocate them for ``rows`` rows."""
        heads, voice = 0, spec.mimi.codebooks
        if spec.lm is not None:
            heads = spec.lm.extra_heads if spec.kind is PipelineKind.STT else 0
            voice = spec.lm.dep_q
        samples = spec.frame_samples
        return cls(
            torch.zeros(rows, samples + FLAGS, device=device),
            torch.zeros(rows, spec.mimi.codebooks, dtype=torch.int64, device=device),
            torch.zeros(rows, voice, dtype=torch.int64, device=device),
            torch.zeros(rows, samples + 1 + heads, device=device),
        )


class Pipeline:
    """The modules of one model, their state for S rows, and the three stages over them."""

    def __init__(self, spec: ModelSpec, mimi: Mimi, generator: Generator | None, *, rows: int) -> None:
        """Take over loaded modules and allocate ``rows`` fresh rows beside them."""
        self.spec, self.mimi, self.generator = spec, mimi, generator
        self.device = mimi.device
        self.sampler: Sampler | None = None
        if spec.lm is not None:
            is_fused = generator is not None and generator.model.is_fused(self.device)
            self.sampler = Sampler(spec.lm, rows, self.device, is_fused=is_fused)
        self.state = State(self.specs(), rows, self.device)
        self.buffers = Buffers.make(spec, rows, self.device)
        self.heard = spec.mimi.codebooks if spec.lm is None else spec.lm.n_q - spec.lm.dep_q

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the pipeline."""
        yield from self.mimi.specs()
        if self.generator is not None and self.sampler is not None:
            yield from self.generator.specs()
            yield from self.sampler.specs()

    def context_frames(self) -> dict[str, int]:
        """How many frames back each stage looks, by its name in ``StepOutputs.stage_ms``."""
        mimi = self.mimi.encoder_transformer.config
        frames = -(-mimi.context // mimi.frame_positions)
        found = {"encode": frames, "decode": frames}
        if self.generator is not None:
            found["lm"] = self.generator.model.transformer.config.context
        return found

    def _step(self, rows: int, flag: int | None) -> Step:
        if flag is None:
            return self.state.step(rows)
        return self.state.step(rows, self.buffers.arrived[:rows, flag] != 0)

    def renew(self, rows: int) -> None:
        """Make the rows among ``0 .. rows-1`` fresh that the tick resets."""
        self.state.renew(self.buffers.arrived[:rows, RESET] != 0)

    def encode(self, rows: int, filled: int, *, masked: bool) -> None:
        """PCM to codes, for rows ``0 .. rows-1``; ``masked`` says whether some of them do not execute."""
        pcm = self.buffers.arrived[:rows, : self.spec.frame_samples]
        codes = self.mimi.encode(pcm, self._step(rows, EXECUTE if masked else None), filled)
        self.buffers.codes[:rows].copy_(codes[:, :, 0])
        if self.generator is None:
            self.buffers.voice[:rows].copy_(codes[:, :, 0])

    def think(self, rows: int, filled: int, *, masked: bool) -> None:
        """Codes heard to the text token, pause probabilities, and the codes to be spoken."""
        assert self.generator is not None
        assert self.sampler is not None
        step = self._step(rows, EXECUTE if masked else None)
        self._begin_again(step)
        out = self.generator.step(self.buffers.codes[:rows, : self.heard], step, self.sampler, filled)
        samples = self.spec.frame_samples
        self.write_text(rows, out.tokens[:, 0])
        self.buffers.voice[:rows].copy_(out.tokens[:, 1:].clamp(min=0))
        if self.buffers.leaving.shape[1] > samples + 1:
            heads = self.generator.model.pause_heads(out.hidden)
            self.buffers.leaving[:rows, samples + 1 :].copy_(heads[:, :, PAUSE_INDEX])

    def write_text(self, rows: int, tokens: Tensor) -> None:
        """Put text tokens int64 ``[n]`` where the host finds them, all their bits."""
        bits = tokens.to(torch.int32).view(torch.float32)
        self.buffers.leaving[:rows, self.spec.frame_samples].copy_(bits)

    def _begin_again(self, step: Step) -> None:
        """Let the codec forget a duplex session's first frame, whose codes the model is being given.

        Upstream does so (``skip_frames`` of ``moshi/server.py``), and the next frame's codes depend on it.
        """
        if self.spec.kind is not PipelineKind.DUPLEX:
            return
        is_first = step.read("lm.position") == 0
        self.state.renew(is_first if step.exec_mask is None else is_first & step.exec_mask, "encoder")

    def decode(self, rows: int, filled: int, *, masked: bool) -> None:
        """Codes to PCM; ``masked`` says whether some rows do not emit."""
        step = self._step(rows, EMIT if masked else None)
        pcm = self.mimi.decode(self.buffers.voice[:rows, :, None], step, filled)
        self.buffers.leaving[:rows, : self.spec.frame_samples].copy_(pcm)
