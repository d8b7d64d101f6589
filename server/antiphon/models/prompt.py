"""Prompts of a model, read before the caller's first frame: a persona, a voice."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.arrays import FloatArray
from antiphon.errors import UnsupportedError
from antiphon.models.spec import LMSpec

IntArray: TypeAlias = NDArray[np.int32]

SHORTEST_FRAMES = 2
"""A model never sees what the first frame holds, so one frame alone says nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The tokens of T frames, all of them forced.

    ``frames`` is int32 ``[T, 1 + n_q]``: text, the model's own voice, what it hears. Two things may stand
    in for part of them. ``voice`` is float32 ``[V, frame_samples]``: what the codec makes of it is the own
    voice of the first V frames. ``embedded`` is float32 ``[E, dim]``: the model's first E inputs, embedded
    already. A tts model is given nothing but ``speakers``, float32 ``[V, T, width]``: the voices it is to
    speak with; or ``keys_values``, float32 ``[layers, 2, T, heads, head_dim]``: what it keeps of a voice it
    has heard; or ``voice``, the recording. ``key`` is a hash of all this: prompts of equal keys are equal.
    """

    frames: IntArray
    voice: FloatArray | None = None
    embedded: FloatArray | None = None
    speakers: FloatArray | None = None
    keys_values: FloatArray | None = None
    key: str = field(init=False)

    def __post_init__(self) -> None:
        """Hash the content."""
        digest = hashlib.sha256()
        for part in self._parts:
            if part is not None:
                digest.update(f"{part.dtype}{part.shape}".encode())
                digest.update(np.ascontiguousarray(part).tobytes())
            digest.update(b"|")
        object.__setattr__(self, "key", digest.hexdigest())

    @property
    def _parts(self) -> tuple[NDArray[Any] | None, ...]:
        return self.frames, self.voice, self.embedded, self.speakers, self.keys_values

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        return sum(part.nbytes for part in self._parts if part is not None)

    @property
    def count(self) -> int:
        """Frames in the prompt."""
        return int(self.frames.shape[0])


def check_prompt(prompt: Prompt, lm: LMSpec) -> None:
    """Check that a model can be given a prompt.

    Raises:
        UnsupportedError: streams or tokens the model does not have, a length below ``SHORTEST_FRAMES`` or
            above its context, or delays that would force more than the frame after the prompt.
    """
    if lm.delays[0] != 0 or lm.max_delay > 1:
        raise UnsupportedError(
            f"a prompt needs text without delay and voices delayed by at most 1 frame, "
            f"this model's delays are {lm.delays[0]} and {lm.max_delay}"
        )
    frames = prompt.frames
    if frames.ndim != 2 or frames.shape[1] != 1 + lm.n_q or frames.dtype != np.int32:
        raise UnsupportedError(
            f"a prompt of {frames.dtype} {list(frames.shape)}, but this model needs int32 [T, {1 + lm.n_q}]"
        )
    if not SHORTEST_FRAMES <= prompt.count <= lm.context:
        raise UnsupportedError(
            f"a prompt of {prompt.count} frames, but this model takes {SHORTEST_FRAMES} to {lm.context}"
        )
    for what, tokens, entries in (("text", frames[:, :1], lm.text_card), ("audio", frames[:, 1:], lm.card)):
        if tokens.min() < 0 or tokens.max() > entries:
            raise UnsupportedError(
                f"the prompt's {what} tokens go from {tokens.min()} to {tokens.max()}, "
                f"this model's from 0 to {entries}"
            )
    embedded, voice = prompt.embedded, prompt.voice
    if embedded is not None and (embedded.shape[0] >= prompt.count or embedded.shape[1] != lm.dim):
        raise UnsupportedError(
            f"embedded inputs {list(embedded.shape)} in a prompt of {prompt.count} frames, "
            f"but this model needs [fewer than {prompt.count}, {lm.dim}]"
        )
    if voice is not None and voice.shape[0] >= prompt.count:
        raise UnsupportedError(
            f"a voice of {voice.shape[0]} frames in a prompt of {prompt.count}, which must be longer"
        )
