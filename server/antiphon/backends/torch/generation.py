"""One step of a language model: delay cache, temporal transformer, sampling, depformer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from antiphon.backends.torch.delays import DelayCache
from antiphon.backends.torch.modules.depformer_parts import Chooser
from antiphon.backends.torch.modules.embedding import ZERO_TOKEN
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import Step
from antiphon.models.spec import LMSpec


class TokenChooser(Protocol):
    """Chooses tokens from logits, row by row; ``frames [n]`` is each row's step since its reset."""

    def text(self, logits: Tensor, step: Step, frames: Tensor) -> Tensor:
        """``[n, text_card]``, in the model's dtype, to int64 ``[n]``; may keep a history in the state."""
        ...

    def audio(self, codebook: int, logits: Tensor, frames: Tensor) -> Tensor:
        """``[n, card]``, in the model's dtype, to int64 ``[n]``."""
        ...


@dataclass(frozen=True, slots=True)
class Generated:
    """A step's result: ``tokens`` int64 ``[n, 1 + dep_q]`` of the frame complete, ``hidden [n, 1, dim]``.

    Where a row is several sequences, ``hidden`` has each.
    """

    tokens: Tensor
    hidden: Tensor


class Generator:
    """A language model that hears ``n_q - dep_q`` codes a frame and says a text token and ``dep_q`` codes.

    ``sequences`` is how many a row is to the transformer.
    """

    sequences: ClassVar[int] = 1

    def __init__(self, model: LanguageModel, spec: LMSpec, *, audio_delay: int = 0) -> None:
        """Join a loaded model and its delays; audio tokens begin ``audio_delay`` steps after text."""
        self.model = model
        self.dep_q = spec.dep_q
        self._audio_delay = audio_delay
        initial = (spec.text_card, *[spec.card] * spec.n_q)
        device = model.text_emb.weight.device
        self.cache = DelayCache(spec.delays, spec.dep_q + 1, initial, device, is_fused=model.is_fused(device))

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the language model and its delay cache."""
        yield from self.model.specs()
        yield from self.cache.specs()

    def step(
        self,
        codes: Tensor,
        step: Step,
        choose: TokenChooser,
        *,
        is_silent: bool = False,
    ) -> Generated:
        """Hear codes int64 ``[n, n_q - dep_q]`` and generate.

        A row's tokens are of use once it has seen more than ``max_delay`` frames. ``is_silent``: every row
        is within its audio delay, so there is no audio token to be found.
        """
        frames = self._frames(step)
        inputs = self.cache.heard(step, frames, codes)
        hidden, logits = self._read(inputs, step)
        text = choose.text(logits[:, 0], step, frames)
        said = text[:, None]
        if self.model.depformer is not None and is_silent:
            nothing = torch.full_like(said, ZERO_TOKEN).expand(-1, self.dep_q)
            said = torch.cat([said, nothing], dim=1)
        elif self.model.depformer is not None:
            audio = self._speak(hidden, text, lambda codebook, row: choose.audio(codebook, row, frames))
            said = torch.cat([said, self._silenced(audio, frames)], dim=1)
        return Generated(self.cache.spoken(step, frames, said), hidden)

    def _frames(self, step: Step) -> Tensor:
        """Each row's steps since its reset, ``[n]``, as they are before this one."""
        return step.read("lm.position")

    def _read(self, tokens: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Tokens ``[n, 1 + n_q, 1]`` to hidden ``[n * sequences, 1, dim]``, text logits ``[n, 1, card]``."""
        hidden, logits = self.model(tokens, step)
        return hidden, logits

    def _speak(self, hidden: Tensor, text: Tensor, choose: Chooser) -> Tensor:
        """Hidden and text tokens ``[n]`` to audio tokens ``[n, dep_q]``."""
        assert self.model.depformer is not None
        audio: Tensor = self.model.depformer(hidden, text, choose)
        return audio

    def _silenced(self, audio: Tensor, frames: Tensor) -> Tensor:
        """Audio tokens ``[n, dep_q]``, or nothing where the text's delay has not passed."""
        if not self._audio_delay:
            return audio
        first = self.cache.delays[1 : 1 + self.dep_q] + self._audio_delay
        return audio.masked_fill(frames[:, None] < first, ZERO_TOKEN)
