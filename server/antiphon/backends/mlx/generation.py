"""One step of a language model: delay cache, temporal transformer, sampling, depformer.

Stream k's token for frame f enters the model at step f + delays[k] + 1; its initial token enters at the steps
before. The rule is upstream's (``moshi/models/lm.py``, ``LMGen``), as in :mod:`antiphon.models.delays`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import mlx.core as mx

from antiphon.backends.mlx.lm import LanguageModel
from antiphon.backends.mlx.sampling import Draw
from antiphon.backends.mlx.state import Packed, Step
from antiphon.backends.snapshots import TensorSpec
from antiphon.models.delays import UNGENERATED, ZERO
from antiphon.models.spec import LMSpec


class DelayCache:
    """The delay cache of a language model: the state ``lm.tokens`` int32 ``[1 + n_q, max_delay + 2]``, a ring
    over steps.
    """

    def __init__(self, spec: LMSpec) -> None:
        """Keep the constants on the device. The model's own streams are first, text before all others."""
        self.generated, self.max_delay = spec.dep_q + 1, spec.max_delay
        self.capacity = self.max_delay + 2
        self.delays = mx.array(spec.delays)
        self.initial = mx.array((spec.text_card, *[spec.card] * spec.n_q))

    def specs(self) -> Iterator[TensorSpec]:
        """The state this cache keeps."""
        yield TensorSpec("lm.tokens", (self.delays.shape[0], self.capacity), mx.int32, fill=UNGENERATED)

    def inputs(self, step: Packed, offsets: mx.array, tokens: mx.array) -> mx.array:
        """Store the rows' input of step ``offsets [n]``; returns the model's input of every stream.

        ``tokens`` is int32 ``[n, n_q + 1 - generated]``, the result int32 ``[n, 1 + n_q]``.
        """
        cache = step.read("lm.tokens")
        if tokens.shape[1]:
            slots = (offsets[:, None] + self.delays[self.generated :]) % self.capacity
            other = mx.put_along_axis(cache[:, self.generated :], slots[..., None], tokens[..., None], axis=2)
            cache = mx.concatenate([cache[:, : self.generated], other], axis=1)
            step.write("lm.tokens", cache)
        is_before = offsets[:, None] <= self.delays
        now = mx.broadcast_to((offsets % self.capacity)[:, None, None], (*cache.shape[:2], 1))
        return mx.where(is_before, self.initial, mx.take_along_axis(cache, now, axis=2)[..., 0])

    def outputs(self, step: Packed, offsets: mx.array, tokens: mx.array) -> mx.array:
        """Store the model's output of step ``offsets [n]``; returns the frame that is now complete.

        ``tokens`` and the result are int32 ``[n, generated]``. The result for rows with ``offsets <
        max_delay`` is undefined: they have no complete frame.
        """
        cache = step.read("lm.tokens")
        following = offsets[:, None] + 1
        slots = mx.broadcast_to(following % self.capacity, tokens.shape)
        own = mx.put_along_axis(cache[:, : self.generated], slots[..., None], tokens[..., None], axis=2)
        step.write("lm.tokens", mx.concatenate([own, cache[:, self.generated :]], axis=1))
        frame = following - self.max_delay + self.delays[: self.generated]
        return mx.take_along_axis(own, (frame % self.capacity)[..., None], axis=2)[..., 0]


class TokenChooser(Protocol):
    """Chooses tokens from logits, row by row; a sampler, for example."""

    def text(self, logits: mx.array, step: Step, draw: Draw) -> mx.array:
        """Choose text tokens int32 ``[n]`` from logits ``[n, text_card]``; may keep a history in the
        state.
        """

    def audio(self, codebook: int, logits: mx.array, draw: Draw) -> mx.array:
        """Choose tokens of one codebook, int32 ``[n]``, from logits ``[n, card]``."""


class Generator:
    """A language model whose input is ``n_q - dep_q`` codes a frame, and whose output is a text token and
    ``dep_q`` codes.
    """

    def __init__(self, model: LanguageModel, spec: LMSpec, *, audio_delay: int = 0) -> None:
        """Combine a loaded model with its delays; audio tokens begin ``audio_delay`` steps after text."""
        self.model, self.spec = model, spec
        self._audio_delay = audio_delay
        self._first_audio = mx.array(spec.delays[1 : 1 + spec.dep_q]) + audio_delay
        self.cache = DelayCache(spec)
        self.heard_codes = spec.n_q - spec.dep_q

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the language model and its delay cache."""
        yield from self.model.specs()
        yield from self.cache.specs()

    def listen(self, codes: mx.array, step: Step) -> tuple[mx.array, mx.array]:
        """Map codes int32 ``[n, n_q - dep_q]`` to hidden ``[n, 1, dim]``, text logits ``[n, text_card]``."""
        inputs = self.cache.inputs(step, step.read("lm.position"), codes)
        return self.model(inputs, step)

    def speak(
        self,
        hidden: mx.array,
        logits: mx.array,
        step: Step,
        choose: TokenChooser,
        draw: Callable[[], Draw],
        *,
        is_silent: bool = False,
    ) -> mx.array:
        """Choose the output after :meth:`listen`; return the tokens int32 ``[n, 1 + dep_q]`` of the complete
        frame.

        They are valid once a row has processed more than ``max_delay`` frames. ``draw`` makes the noise while
        the device computes the logits. ``is_silent``: every row is within its audio delay, so no audio token
        is computed.
        """
        mx.async_eval(hidden, logits)
        drawn = draw()
        text = choose.text(logits, step, drawn)
        said = text[:, None]
        frames = step.read("lm.position") - 1
        if self.model.depformer is not None:
            audio = mx.full((len(said), self.spec.dep_q), ZERO, mx.int32)
            if not is_silent:
                audio = self.model.depformer(
                    hidden, text, lambda codebook, row: choose.audio(codebook, row, drawn)
                )
                if self._audio_delay:  # no output before the text's delay has passed
                    audio = mx.where(frames[:, None] < self._first_audio, ZERO, audio)
            said = mx.concatenate([said, audio], axis=1)
        return self.cache.outputs(step, frames, said)
