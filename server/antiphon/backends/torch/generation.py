"""One step of a language model, with or without guidance: delays, temporal transformer, sampling, depformer.

**Delays**: stream k's token for frame f enters the model at step f + delays[k] + 1; its initial token enters
at the steps before. The rule is upstream's (``moshi/models/lm.py``, ``LMGen``), as in
:mod:`antiphon.models.delays`.

**Guidance**, classifier-free: for the transformer every row is two sequences, one conditioned and one
unconditioned. As in upstream's ``TTSModel`` and ``LMGen``, the second sequence has the same audio, no text
and no voice. Audio logits are moved away from those of the second sequence; text logits come from the first.
The transformer's state has one more axis, ``[2, ...]``, conditioned first, so an operation on a row applies
to both sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import torch
from torch import Tensor

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.kernels.fused import load_tokens
from antiphon.backends.torch.modules.attention import Chooser
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.state import PackedStep, Step
from antiphon.models.delays import UNGENERATED, ZERO
from antiphon.models.spec import LMSpec


class DelayCache:
    """The delay cache of a language model: the state ``lm.tokens`` int64 ``[1 + n_q, max_delay + 2]``, a ring
    over steps.
    """

    def __init__(
        self,
        delays: Sequence[int],
        generated: int,
        initial: Sequence[int],
        device: torch.device | str = "cpu",
        *,
        is_fused: bool = False,
    ) -> None:
        """Keep the constants on the device, so that a step can be captured; ``is_fused``: Triton kernels do
        the work.

        ``delays`` are per stream, text first; ``generated`` counts the model's own streams (text included),
        which come first. ``initial`` is each stream's token before its first frame.
        """
        self.generated, self.max_delay = generated, max(delays)
        self.capacity = self.max_delay + 2
        self.delays = torch.tensor(tuple(delays), device=device)
        self.initial = torch.tensor(tuple(initial), device=device)[:, None]
        self._kernels = load_tokens() if is_fused else None

    def specs(self) -> Iterator[TensorSpec]:
        """The state this cache keeps."""
        yield TensorSpec("lm.tokens", (len(self.delays), self.capacity), torch.int64, fill=UNGENERATED)

    def inputs(self, step: Step, offsets: Tensor, tokens: Tensor) -> Tensor:
        """Store the rows' input of step ``offsets [n]``; returns the model's input of every stream.

        ``tokens`` is int64 ``[n, n_q + 1 - generated]``, the result int64 ``[n, 1 + n_q, 1]``.
        """
        if self._kernels is not None and isinstance(step, PackedStep):
            given: Tensor = self._kernels.delayed_input(self._kept(step), step.rows, offsets, tokens)
            return given
        cache = step.read("lm.tokens")
        slots = torch.remainder(offsets[:, None] + self.delays[self.generated :], self.capacity)
        other = cache[:, self.generated :].scatter(2, slots[..., None], tokens[..., None])
        cache = torch.cat([cache[:, : self.generated], other], dim=1)
        step.write("lm.tokens", cache)
        now = torch.remainder(offsets, self.capacity).view(-1, 1, 1).expand(-1, cache.shape[1], 1)
        is_before = (offsets[:, None] <= self.delays)[..., None]
        if step.idle is not None:
            is_before = is_before | step.idle.view(-1, 1, 1)
        return torch.where(is_before, self.initial, cache.gather(2, now))

    def outputs(self, step: Step, offsets: Tensor, tokens: Tensor) -> Tensor:
        """Store the model's output of step ``offsets [n]``; returns the frame that is now complete.

        ``tokens`` and the result are int64 ``[n, generated]``. The result for rows with ``offsets <
        max_delay`` is undefined: they have no complete frame.
        """
        if self._kernels is not None and isinstance(step, PackedStep):
            done: Tensor = self._kernels.delayed_output(self._kept(step), offsets, tokens, self.max_delay)
            return done
        cache = step.read("lm.tokens")
        following = offsets[:, None] + 1
        slots = torch.remainder(following, self.capacity).expand(-1, self.generated)
        own = cache[:, : self.generated].scatter(2, slots[..., None], tokens[..., None])
        step.write("lm.tokens", torch.cat([own, cache[:, self.generated :]], dim=1))
        frame = following - self.max_delay + self.delays[: self.generated]
        return own.gather(2, torch.remainder(frame, self.capacity)[..., None])[..., 0]

    def _kept(self, step: PackedStep) -> Any:
        """The cache in the form of its kernels."""
        assert self._kernels is not None
        tokens = step.whole("lm.tokens")
        return self._kernels.Delayed(tokens, step.at, self.delays, self.initial, self.generated)


class TokenChooser(Protocol):
    """Chooses tokens from logits, row by row; ``frames [n]`` is each row's step since its reset."""

    def text(self, logits: Tensor, step: Step, frames: Tensor) -> Tensor:
        """Choose text tokens int64 ``[n]`` from logits ``[n, text_card]`` in the model's dtype; may keep a
        history in the state.
        """
        ...

    def audio(self, codebook: int, logits: Tensor, frames: Tensor) -> Tensor:
        """Choose tokens of one codebook, int64 ``[n]``, from logits ``[n, card]`` in the model's dtype."""
        ...


@dataclass(frozen=True, slots=True)
class Generated:
    """A step's result: ``tokens`` int64 ``[n, 1 + dep_q]`` of the complete frame, ``hidden [n, 1, dim]``.

    If a row has several sequences, ``hidden`` has an entry for each sequence.
    """

    tokens: Tensor
    hidden: Tensor


class Generator:
    """A language model that maps ``n_q - dep_q`` input codes a frame to a text token and ``dep_q`` codes.

    ``sequences`` is the number of the transformer's sequences per row.
    """

    sequences: ClassVar[int] = 1

    def __init__(self, model: LanguageModel, spec: LMSpec, *, audio_delay: int = 0) -> None:
        """Combine a loaded model with its delays; audio tokens begin ``audio_delay`` steps after text."""
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
        """Process a frame's input codes int64 ``[n, n_q - dep_q]`` and generate its output.

        A row's tokens are valid once it has processed more than ``max_delay`` frames. ``is_silent``: every
        row is within its audio delay, so no audio token is computed.
        """
        frames = self._frames(step)
        inputs = self.cache.inputs(step, frames, codes)
        hidden, logits = self._read(inputs, step)
        text = choose.text(logits[:, 0], step, frames)
        said = text[:, None]
        if self.model.depformer is not None and is_silent:
            nothing = torch.full_like(said, ZERO).expand(-1, self.dep_q)
            said = torch.cat([said, nothing], dim=1)
        elif self.model.depformer is not None:
            audio = self._speak(hidden, text, lambda codebook, row: choose.audio(codebook, row, frames))
            if self._audio_delay:  # no output before the text's delay has passed
                first = self.cache.delays[1 : 1 + self.dep_q] + self._audio_delay
                audio = audio.masked_fill(frames[:, None] < first, ZERO)
            said = torch.cat([said, audio], dim=1)
        return Generated(self.cache.outputs(step, frames, said), hidden)

    def _frames(self, step: Step) -> Tensor:
        """Each row's steps since its reset, ``[n]``, without this one."""
        return step.read("lm.position")

    def _read(self, tokens: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Return hidden ``[n * sequences, 1, dim]`` and text logits ``[n, 1, card]``."""
        hidden, logits = self.model(tokens, step)
        return hidden, logits

    def _speak(self, hidden: Tensor, text: Tensor, choose: Chooser) -> Tensor:
        """Map hidden and text tokens ``[n]`` to audio tokens ``[n, dep_q]``."""
        assert self.model.depformer is not None
        audio: Tensor = self.model.depformer(hidden, text, choose)
        return audio


PAIR: Final = 2


class GuidedGenerator(Generator):
    """A generator whose rows are pairs of sequences, for steps that write in place."""

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
        """Guide by ``coefficient``; ``conditions [2, dim]`` are added to the inputs, conditioned first."""
        super().__init__(model, spec, audio_delay=audio_delay)
        self.coefficient = coefficient
        self._conditions = None if conditions is None else conditions[:, None].to(model.dtype)
        self._text_delay = spec.delays[0]

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor; those of the transformer hold pairs of sequences."""
        yield from (spec.pair() for spec in self.model.specs())
        yield from self.cache.specs()

    def _frames(self, step: Step) -> Tensor:
        return step.read("lm.position")[:, 0].contiguous()  # kernels read both of a pair as neighbours

    def _read(self, tokens: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Map tokens ``[n, 1 + n_q, 1]`` to hidden ``[2 * n, 1, dim]``, in pairs, and conditioned logits."""
        unconditioned = tokens.clone()
        is_text = self._frames(step)[:, None] > self._text_delay  # before: the initial token, for both
        unconditioned[:, 0] = tokens[:, 0].masked_fill(is_text, ZERO)
        inputs = self.model.embed(torch.stack([tokens, unconditioned], dim=1).flatten(0, 1))
        if self._conditions is not None:
            inputs = (inputs.view(-1, *self._conditions.shape) + self._conditions).flatten(0, 1)
        assert isinstance(step, PackedStep), "a pair is two rows of the same memory"
        pairs = step.pairs([spec.name for spec in self.model.specs()])
        hidden = self.model.out_norm(self.model.read(inputs, pairs))
        return hidden, self.model.text_linear(hidden[::PAIR])

    def _speak(self, hidden: Tensor, text: Tensor, choose: Chooser) -> Tensor:
        """Map hidden of pairs and text tokens ``[n]`` to audio tokens ``[n, dep_q]``."""

        def guided(codebook: int, logits: Tensor) -> Tensor:
            told, unconditioned = logits.float().view(-1, PAIR, logits.shape[1]).unbind(dim=1)
            return _twice(choose(codebook, unconditioned + (told - unconditioned) * self.coefficient))

        assert self.model.depformer is not None
        said: Tensor = self.model.depformer(hidden, _twice(text), guided)
        return said[::PAIR]


def _twice(values: Tensor) -> Tensor:
    """Map ``[n]`` to ``[2 * n]``, with each element twice in succession."""
    return values[:, None].expand(-1, PAIR).flatten()
