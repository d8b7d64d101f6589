"""Checks of what a front end asks for that its messages do not declare: they depend on the model.

A front end is a process of its own, and its memory may be spoilt. A value out of range ends the call that it
is for; what cannot be a call's fault ends the front end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from antiphon.backends.base import BackendInfo, FloatArray, TextEntry
from antiphon.errors import ProtocolError, UnsupportedError
from antiphon.ipc.messages import Sent
from antiphon.models.prompt import Prompt
from antiphon.models.words import MAX_WORD_TOKENS

MAX_PADDING_FRAMES: Final = 4096
"""After a word: pauses of callers are at most ten seconds, 125 frames."""

PROMPT_AXES: Final = {"frames": 2, "voice": 2, "embedded": 2, "speakers": 3, "keys_values": 5}


def check_prompt(prompt: Prompt) -> None:
    """Check the arrays of a prompt.

    Raises:
        UnsupportedError: one has other axes, or holds what is no number.
    """
    for name, axes in PROMPT_AXES.items():
        array = getattr(prompt, name)
        if array is not None and array.ndim != axes:
            raise UnsupportedError(f"{name} of a prompt has {array.ndim} axes, not {axes}")
        if array is not None and not np.isfinite(array).all():
            raise UnsupportedError(f"{name} of a prompt holds what is no number")


def check_words(entries: Sequence[TextEntry], info: BackendInfo, *, room: int) -> None:
    """Check words for a tts row that has room for ``room``.

    Raises:
        UnsupportedError: there are more, or one has a token, a length or a pause out of range.
    """
    if len(entries) > room:
        raise UnsupportedError(f"{len(entries)} words for a row with room for {room}")
    most = info.spec.lm.text_card if info.spec.lm is not None else 2**31 - 1
    for entry in entries:
        if len(entry.tokens) > MAX_WORD_TOKENS + 1 or len(entry.text) > 16 * MAX_WORD_TOKENS:
            raise UnsupportedError(
                f"a word of {len(entry.tokens)} tokens and {len(entry.text)} letters, "
                f"the limits are {MAX_WORD_TOKENS + 1} and {16 * MAX_WORD_TOKENS}"
            )
        if any(not 0 <= token <= most for token in entry.tokens):
            raise UnsupportedError(f"a token is out of range: 0 to {most}")
        if not 0 <= entry.padding_frames <= MAX_PADDING_FRAMES:
            raise UnsupportedError(
                f"padding_frames is {entry.padding_frames}, out of range: 0 to {MAX_PADDING_FRAMES}"
            )


def check_tail(tail: FloatArray, frame_samples: int) -> None:
    """Check the unfinished frame before flush padding.

    Raises:
        UnsupportedError: it is longer than a frame.
    """
    if tail.size > frame_samples:
        raise UnsupportedError(f"an unfinished frame of {tail.size} samples; a frame has {frame_samples}")


def check_sent(sent: Sent) -> None:
    """Check the latencies of replies, and of first audio.

    Raises:
        ProtocolError: one of them is negative or no number, or a count is larger than their number.
    """
    for seconds in (sent.latency_s, sent.first_audio_s):
        if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
            raise ProtocolError("latencies that are no times")
    if max(sent.late, sent.pressing) > sent.latency_s.size:
        raise ProtocolError(f"{sent.late} late and {sent.pressing} pressing of {sent.latency_s.size} replies")
