"""One tick on the device: encode, the language model, decode, over static buffers.

The kinds differ only in which stages they have: codec encodes and decodes, stt encodes and listens,
duplex does all three, tts speaks without an encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.backends.torch.generation import Generator, TokenChooser
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.places import Places
from antiphon.backends.torch.sampling import Sampler
from antiphon.backends.torch.state import State, TensorSpec
from antiphon.backends.torch.step import PackedStep
from antiphon.models.codec_architecture import UNUSED_STATE
from antiphon.models.spec import ModelSpec, PipelineKind

ROW_COLUMNS, ROW, EMITTING = 2, -2, -1
"""How many columns of ``Buffers.arrived`` are no PCM, and which they are."""

RENEWED, FORGOTTEN = 0, 1
"""The lines of ``Buffers.chosen``."""

PAUSE_INDEX = 0
"""The entry of an extra head's softmax that is the probability of a pause."""

ENCODER = "encoder"
"""What the names of the encoder's state begin with."""


def codec_specs(mimi: Mimi, kind: PipelineKind) -> Iterator[TensorSpec]:
    """The codec's state for a kind of pipeline: what never decodes has no decoder's, and the reverse."""
    unused = UNUSED_STATE.get(kind)
    return (spec for spec in mimi.specs() if unused is None or not spec.name.startswith(unused))


@dataclass(frozen=True, slots=True)
class Buffers:
    """Where a tick's data lies on the device, at the same address every tick.

    By place: ``arrived`` float32 ``[S, frame_samples + 2]``: PCM, then as the bits of int32 the row that is
    encoded and thinks there, and the row that is decoded there. ``codes`` int64 ``[S, K]`` heard. ``leaving``
    float32 ``[S, frame_samples + 1 + heads]``: PCM, the text token as the bits of an int32 (a float32 would
    round what carries two texts), pause probabilities. One transfer each way.
    By row: ``voice`` int64 ``[S + 1, L]`` to be spoken, ``chosen`` bool ``[2, S]`` to be made fresh.
    """

    arrived: Tensor
    codes: Tensor
    voice: Tensor
    leaving: Tensor
    chosen: Tensor

    @classmethod
    def make(cls, spec: ModelSpec, rows: int, device: torch.device) -> Buffers:
        """Allocate them for ``rows`` rows."""
        heads, voice = 0, spec.mimi.codebooks
        if spec.lm is not None:
            heads = spec.heads
            voice = spec.lm.dep_q
        samples = spec.frame_samples
        return cls(
            torch.zeros(rows, samples + ROW_COLUMNS, device=device),
            torch.zeros(rows, spec.mimi.codebooks, dtype=torch.int64, device=device),
            torch.zeros(rows + 1, voice, dtype=torch.int64, device=device),
            torch.zeros(rows, samples + 1 + heads, device=device),
            torch.zeros(2, rows, dtype=torch.bool, device=device),
        )


class Pipeline:
    """The modules of one model, their state for S rows, and the stages over them."""

    def __init__(self, spec: ModelSpec, mimi: Mimi, generator: Generator | None, *, rows: int) -> None:
        """Take over loaded modules and allocate ``rows`` fresh rows beside them."""
        self.spec, self.mimi, self.generator = spec, mimi, generator
        self.device = mimi.device
        self.sampler: Sampler | None = None
        if spec.lm is not None:
            by_kernels = generator is not None and generator.model.is_fused(self.device)
            self.sampler = Sampler(spec.lm, rows, self.device, is_fused=by_kernels)
        self.state = State(self.specs(), rows, self.device)
        self.buffers = Buffers.make(spec, rows, self.device)
        self.heard = spec.mimi.codebooks if spec.lm is None else spec.lm.n_q - spec.lm.dep_q

    @property
    def is_fused(self) -> bool:
        """Whether all attention of a frame is by kernels, which take a list of rows."""
        is_model_fused = self.generator is None or self.generator.model.is_fused(self.device)
        return is_model_fused and self.mimi.is_fused(self.device)

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the pipeline."""
        yield from codec_specs(self.mimi, self.spec.kind)
        if self.generator is not None and self.sampler is not None:
            yield from self.generator.specs()
            yield from self.sampler.specs()

    def context_frames(self) -> dict[str, int]:
        """How many frames back each stage looks, by its name in ``StepOutputs.stage_ms``."""
        mimi = self.mimi.encoder_transformer.config
        frames = -(-mimi.context // mimi.frame_positions)
        found = {"encode": frames, "decode": frames}
        if self.generator is not None:
            found["text"] = found["lm"] = self.generator.model.transformer.config.context
        return found

    def step(self, places: Places, column: int = ROW) -> PackedStep:
        """The state as a stage sees it, the list of rows being in a column of ``Buffers.arrived``."""
        rows = self.buffers.arrived[: places.count, column].view(torch.int32).long()
        return PackedStep(
            self.state.tensors,
            rows,
            places.runs,
            small_rows=self.state.rows + 1,
            filled=places.filled,
            is_padded=places.is_padded,
            is_fused=self.is_fused,
        )

    def renew(self) -> None:
        """Make the rows fresh that the tick chooses; rings are hidden, not erased."""
        self.state.renew(self.buffers.chosen[RENEWED])

    def forget(self) -> None:
        """Make the encoders of rows fresh that the tick chooses."""
        self.state.renew(self.buffers.chosen[FORGOTTEN], ENCODER)

    def encode(self, places: Places) -> None:
        """PCM to codes."""
        step = self.step(places)
        pcm = self.buffers.arrived[: places.count, : self.spec.frame_samples]
        codes = self.mimi.encode(pcm, step)[:, :, 0]
        self.buffers.codes[: places.count].copy_(codes)
        if self.generator is None:
            self.buffers.voice.index_copy_(0, step.at, codes)

    def think(self, places: Places) -> None:
        """Codes heard to the text token, pause probabilities, and the codes to be spoken."""
        assert self.sampler is not None
        self.write_text(self.generate(places, self.sampler)[:, 0])

    def generate(self, places: Places, chooser: TokenChooser, *, is_silent: bool = False) -> Tensor:
        """A step of the language model: tokens int64 ``[n, 1 + dep_q]``, those of the voice put aside."""
        assert self.generator is not None
        step, heard = self.step(places), self.buffers.codes[: places.count, : self.heard]
        out = self.generator.step(heard, step, chooser, is_silent=is_silent)
        if self.generator.dep_q:
            self.buffers.voice.index_copy_(0, step.at, out.tokens[:, 1:].clamp(min=0))
        first = self.spec.frame_samples + 1
        if self.buffers.leaving.shape[1] > first:
            heads = self.generator.model.pause_heads(out.hidden)
            self.buffers.leaving[: places.count, first:].copy_(heads[:, :, PAUSE_INDEX])
        return out.tokens

    def write_text(self, tokens: Tensor) -> None:
        """Put text tokens int64 ``[n]`` where the host finds them, all their bits."""
        bits = tokens.to(torch.int32).view(torch.float32)
        self.buffers.leaving[: len(tokens), self.spec.frame_samples].copy_(bits)

    def decode(self, places: Places) -> None:
        """Codes to PCM."""
        step = self.step(places, EMITTING)
        pcm = self.mimi.decode(self.buffers.voice.index_select(0, step.at)[:, :, None], step)
        self.buffers.leaving[: places.count, : self.spec.frame_samples].copy_(pcm)
