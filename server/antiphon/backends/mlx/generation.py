"""One step of a language model: delay cache, temporal transformer, sampling, depformer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import mlx.core as mx

from antiphon.backends.mlx.delays import DelayCache
from antiphon.backends.mlx.embedding import ZERO_TOKEN
from antiphon.backends.mlx.lm import LanguageModel
from antiphon.backends.mlx.sampling import Draw
from antiphon.backends.mlx.state import Step, TensorSpec
from antiphon.models.spec import LMSpec


class TokenChooser(Protocol):
    """Chooses tokens from logits, row by row; a sampler, for one."""

    def text(self, logits: mx.array, step: Step, draw: Draw) -> mx.array:
        """``[n, text_card]`` to int32 ``[n]``; may keep a history in the state."""
        ...

    def audio(self, codebook: int, logits: mx.array, draw: Draw) -> mx.array:
        """``[n, card]`` to int32 ``[n]``."""
        ...


class Generator:
    """A language model that hears ``n_q - dep_q`` codes a frame and says a text token and ``dep_q`` codes."""

    def __init__(self, model: LanguageModel, spec: LMSpec, *, audio_delay: int = 0) -> None:
        """Join a loaded model and its delays; audio tokens begin ``audio_delay`` steps after text."""
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
        """Hear codes int32 ``[n, n_q - dep_q]``: hidden ``[n, 1, dim]``, text logits ``[n, text_card]``."""
        inputs = self.cache.heard(step, step.read("lm.position"), codes)
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
        """Choose what is said after :meth:`listen`: tokens int32 ``[n, 1 + dep_q]`` of the frame complete.

        They are of use once a row has seen more than ``max_delay`` frames. ``draw`` makes the noise, while
        the device is busy with the logits. ``is_silent``: every row is within its audio delay, so there is no
        audio token to be found.
        """
        mx.async_eval(hidden, logits)
        drawn = draw()
        text = choose.text(logits, step, drawn)
        said = text[:, None]
        frames = step.read("lm.position") - 1
        if self.model.depformer is not None:
            audio = mx.full((len(said), self.spec.dep_q), ZERO_TOKEN, mx.int32)
            if not is_silent:
                audio = self.model.depformer(
                    hidden, text, lambda codebook, row: choose.audio(codebook, row, drawn)
                )
                audio = self._silenced(audio, frames)
            said = mx.concatenate([said, audio], axis=1)
        return self.cache.spoken(step, frames, said)

    def _silenced(self, audio: mx.array, frames: mx.array) -> mx.array:
        """Audio tokens ``[n, dep_q]``, or nothing where the text's delay has not passed."""
        if not self._audio_delay:
            return audio
        return mx.where(frames[:, None] < self._first_audio, ZERO_TOKEN, audio)
