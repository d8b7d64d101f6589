"""Prompts of a model, processed before the caller's first frame: a voice, a persona.

The persona of PersonaPlex is a voice, silence, a text, silence. Roy et al. 2026, "PersonaPlex: voice and role
control for full duplex conversational speech models"; the order and the constants are those of
NVIDIA/personaplex (``moshi/models/lm.py``, ``moshi/server.py``). During the prompt the caller's side is a
quiet sine. The text is fed at one token per frame while the model's own audio is silence; in the other parts
the text is padding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.arrays import FloatArray
from antiphon.errors import UnsupportedError
from antiphon.models.spec import LMSpec, ModelSpec

IntArray: TypeAlias = NDArray[np.int32]

SHORTEST_FRAMES = 2
"""Minimum number of frames of a prompt, because the model ignores the content of the first frame."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A prompt of T frames, whose tokens the model reads instead of sampling them.

    ``frames`` is int32 ``[T, 1 + n_q]``: text, the model's own voice, its input. ``voice`` and ``embedded``
    may replace a part of the frames. ``voice`` is float32 ``[V, frame_samples]``: its codes are the model's
    own voice in the first V frames. ``embedded`` is float32 ``[E, dim]``: the model's first E inputs, already
    embedded. A tts model gets only one of three fields: ``speakers``, float32 ``[V, T, width]``, has the
    voices; ``keys_values``, float32 ``[layers, 2, T, heads, head_dim]``, has its state after a voice;
    ``voice`` has the recording. ``key`` is a hash of the content: prompts with equal keys are equal.
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
        """Bytes that the prompt takes in memory."""
        return sum(part.nbytes for part in self._parts if part is not None)

    @property
    def count(self) -> int:
        """Number of frames of the prompt."""
        return int(self.frames.shape[0])


def check_prompt(prompt: Prompt, lm: LMSpec) -> None:
    """Check that a prompt fits a model.

    Raises:
        UnsupportedError: streams or tokens that the model does not have, a length below ``SHORTEST_FRAMES``
            or above its context, or delays that would force tokens beyond the frame after the prompt.
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


PERSONA_FAMILY: Final = "personaplex"
SILENCE_CODES: Final = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
"""Mimi's codes for silence, after it has settled."""
SINE_CODES: Final = (430, 1268, 381, 1611, 1095, 1495, 56, 472)
"""Mimi's codes for a sine of 440 Hz, which stands for an absent caller in training."""
PAUSE_S: Final = 0.5
"""Seconds of silence after the voice, and again after the text."""
SYSTEM_TAG: Final = "<system>"
"""The tag before and after the text."""


@dataclass(frozen=True, slots=True, eq=False)
class VoicePrompt:
    """The voice of a persona, as a recording or as embeddings.

    ``pcm`` is float32 ``[V, frame_samples]``. ``embedded`` is float32 ``[V - 1, dim]``. ``codes`` is int32
    ``[2, 1 + n_q]``: the last two frames of the voice, whose delayed tokens are fed later.
    """

    pcm: FloatArray | None = None
    embedded: FloatArray | None = None
    codes: IntArray | None = None

    @property
    def count(self) -> int:
        """Number of frames of the voice."""
        if self.pcm is not None:
            return int(self.pcm.shape[0])
        return 0 if self.embedded is None else int(self.embedded.shape[0]) + 1


def takes_persona(spec: ModelSpec) -> bool:
    """Whether a model was trained with prompts of a persona."""
    return spec.family == PERSONA_FAMILY and spec.lm is not None


def wrap_text(text: str) -> str:
    """A text between the two tags that the model was trained with, unless the text already has them."""
    text = text.strip()
    if text.startswith(SYSTEM_TAG) and text.endswith(SYSTEM_TAG):
        return text
    return f"{SYSTEM_TAG} {text} {SYSTEM_TAG}"


def persona_prompt(spec: ModelSpec, text_tokens: Sequence[int], voice: VoicePrompt | None = None) -> Prompt:
    """The prompt of a persona; ``text_tokens`` are the tokens of the wrapped text, or empty.

    Raises:
        UnsupportedError: a model of another family, a codec without PersonaPlex's codes, or a prompt longer
            than the model's context.
    """
    lm = spec.lm
    streams = len(SILENCE_CODES)
    if not takes_persona(spec) or lm is None:
        raise UnsupportedError(f"{spec.name} is {spec.family}; only {PERSONA_FAMILY} models take a persona")
    if (lm.dep_q, lm.n_q) != (streams, 2 * streams) or lm.card <= max(*SILENCE_CODES, *SINE_CODES):
        raise UnsupportedError(
            f"{spec.name} has {lm.dep_q} + {lm.n_q - lm.dep_q} streams of {lm.card} codes, "
            f"but a persona is written for {streams} + {streams} streams of 2048"
        )
    spoken = 0 if voice is None else voice.count
    pause = int(PAUSE_S * spec.mimi.frame_rate)
    count = spoken + pause + len(text_tokens) + pause
    if count > lm.context:
        raise UnsupportedError(
            f"this persona is {count} frames long ({spoken} of voice, {len(text_tokens)} of text, "
            f"{2 * pause} of silence), but the model's context is {lm.context}"
        )
    frames = np.empty((count, 1 + lm.n_q), dtype=np.int32)
    frames[:] = (lm.text_padding_id, *SILENCE_CODES, *SINE_CODES)
    begin = spoken + pause
    frames[begin : begin + len(text_tokens), 0] = text_tokens
    if voice is None or voice.pcm is not None:
        return Prompt(frames, voice=None if voice is None else voice.pcm)
    if voice.codes is not None:
        frames[spoken - 2 : spoken] = voice.codes
    return Prompt(frames, embedded=voice.embedded)
