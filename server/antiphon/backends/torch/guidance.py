"""Classifier-free guidance: every row is two sequences to the transformer, one conditioned and one not.

``LMGen`` in ``moshi/models/lm.py`` of kyutai-labs/moshi is the rule, as its ``TTSModel`` uses it: the second
sequence hears the same audio, without text and without a voice. Logits of audio move away from what it would
say; the text's are those of the first alone. The transformer's state has one more axis, ``[2, ...]``, told
first, so whatever is done to a row is done to both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.modules.depformer_parts import Chooser
from antiphon.backends.torch.modules.embedding import ZERO_TOKEN
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import PackedStep, Step
from antiphon.models.spec import LMSpec

PAIR: Final = 2


class GuidedGenerator(Generator):
    """A generator whose rows are pairs. Made for steps that write in place."""

    sequences = PAIR

    def __init__(
        self,
        model: LanguageModel,
        spec: LMSpec,
        *,
        coefficient: float,
        conditions: Tensor | None = None,
        audio_delay: int = 0,
    ) -> None:
        """Guide by ``coefficient``; ``conditions [2, dim]`` are added to the inputs of either, told first."""
        super().__init__(model, spec, audio_delay=audio_delay)
        self.coefficient = coefficient
        self._conditions = None if conditions is None else conditions[:, None].to(model.dtype)
        self._text_delay = spec.delays[0]

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor, those of the transformer for a pair."""
        yield from (spec.pair() for spec in self.model.specs())
        yield from self.cache.specs()

    def _frames(self, step: Step) -> Tensor:
        return step.read("lm.position")[:, 0]

    def _read(self, tokens: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Tokens ``[n, 1 + n_q, 1]`` to hidden ``[2 * n, 1, dim]``, in pairs, and the told ones' logits."""
        untold = tokens.clone()
        is_text = self._frames(step)[:, None] > self._text_delay  # before: the initial token, for both
        untold[:, 0] = tokens[:, 0].masked_fill(is_text, ZERO_TOKEN)
        inputs = self.model.embed(torch.stack([tokens, untold], dim=1).flatten(0, 1))
        if self._conditions is not None:
            inputs = (inputs.view(-1, *self._conditions.shape) + self._conditions).flatten(0, 1)
        assert isinstance(step, PackedStep), "a pair is two rows of the same memory"
        pairs = step.pairs([spec.name for spec in self.model.specs()])
        hidden = self.model.out_norm(self.model.read(inputs, pairs))
        return hidden, self.model.text_linear(hidden[::PAIR])

    def _speak(self, hidden: Tensor, text: Tensor, choose: Chooser) -> Tensor:
        """Hidden of pairs and text tokens ``[n]`` to audio tokens ``[n, dep_q]``."""

        def guided(codebook: int, logits: Tensor) -> Tensor:
            told, untold = logits.float().view(-1, PAIR, logits.shape[1]).unbind(dim=1)
            return _twice(choose(codebook, untold + (told - untold) * self.coefficient))

        assert self.model.depformer is not None
        said: Tensor = self.model.depformer(hidden, _twice(text), guided)
        return said[::PAIR]


def _twice(values: Tensor) -> Tensor:
    """``[n]`` to ``[2 * n]``, each beside itself."""
    return values[:, None].expand(-1, PAIR).flatten()
