"""The persona of PersonaPlex: a voice, silence, a text, silence.

Roy et al. 2026, "PersonaPlex: voice and role control for full duplex conversational speech models"; the
order and the constants are those of NVIDIA/personaplex (``moshi/models/lm.py``, ``moshi/server.py``).
All the while the caller's side holds a quiet sine; the text goes in one token a frame beside silence of
the model's own, and is padding elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.arrays import FloatArray
from antiphon.errors import UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.spec import ModelSpec

IntArray: TypeAlias = NDArray[np.int32]

FAMILY: Final = "personaplex"
SILENCE_CODES: Final = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
"""What Mimi makes of silence, once it has settled."""
SINE_CODES: Final = (430, 1268, 381, 1611, 1095, 1495, 56, 472)
"""What Mimi makes of a sine of 440 Hz: in training, a caller who is not there yet."""
PAUSE_S: Final = 0.5
"""Silence after the voice, and again after the text."""
SYSTEM_TAG: Final = "<system>"
"""Before the text and, the same once more, behind it."""


@dataclass(frozen=True, slots=True, eq=False)
class VoicePrompt:
    """How the model shall sound: as recorded, or as a model was once given it.

    ``pcm`` is float32 ``[V, frame_samples]``. ``embedded`` is float32 ``[V - 1, dim]`` and ``codes`` int32
    ``[2, 1 + n_q]``: the voice's last two frames, whose delayed tokens the model is yet to hear.
    """

    pcm: FloatArray | None = None
    embedded: FloatArray | None = None
    codes: IntArray | None = None

    @property
    def count(self) -> int:
        """Frames in the voice."""
        if self.pcm is not None:
            return int(self.pcm.shape[0])
        return 0 if self.embedded is None else int(self.embedded.shape[0]) + 1


def takes_persona(spec: ModelSpec) -> bool:
    """Whether a model was trained to be prompted like this."""
    return spec.family == FAMILY and spec.lm is not None


def wrap_text(text: str) -> str:
    """A text between the two tags it was trained with, unless it has them already."""
    text = text.strip()
    if text.startswith(SYSTEM_TAG) and text.endswith(SYSTEM_TAG):
        return text
    return f"{SYSTEM_TAG} {text} {SYSTEM_TAG}"


def persona_prompt(spec: ModelSpec, text_tokens: Sequence[int], voice: VoicePrompt | None = None) -> Prompt:
    """The prompt of a persona: ``text_tokens`` are those of the wrapped text, or none.

    Raises:
        UnsupportedError: a model of another family, or whose codec has not PersonaPlex's codes, or a
            prompt longer than the model's context.
    """
    lm = spec.lm
    streams = len(SILENCE_CODES)
    if not takes_persona(spec) or lm is None:
        raise UnsupportedError(f"{spec.name} is {spec.family}; only {FAMILY} models take a persona")
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
            f"{2 * pause} of silence), but the model looks back {lm.context}"
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
