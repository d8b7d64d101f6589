"""What a front end may ask for, by range: checked in the engine's process, before anything of it is kept.

A front end is a process of its own, and its memory may be spoilt. What it says out of range ends the call it
says it of; what cannot be a call's fault ends the front end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import BackendInfo, FloatArray, TextEntry
from antiphon.errors import ProtocolError, UnsupportedError
from antiphon.ipc.resumption import Note, ResumeClaim
from antiphon.models.sampling import SamplingParameters, check_parameters
from antiphon.models.words import MAX_WORD_TOKENS
from antiphon.values import ValueRule

if TYPE_CHECKING:  # an engine without front ends needs no msgpack
    from antiphon.ipc import messages

MAX_CALL_CHARS: Final = 64
"""Of a call's id; ours have 16."""

MAX_WAIT_S: Final = 86_400.0
"""No caller waits for longer than a day."""

MAX_FLUSH_FRAMES: Final = 1024
"""Frames of silence at once: recognisers lag behind by less than a hundred."""

MAX_PADDING_FRAMES: Final = 4096
"""After a word: pauses of callers are at most ten seconds, 125 frames."""

MAX_NOTE_BYTES: Final = 65_536
"""Of a numbered message: pieces of text, and events of a few fields."""

KEY_BYTES: Final = 32
"""Of a SHA-256."""

MAX_OWNER_CHARS: Final = 256
"""Of the name of an API key."""

MAX_COUNT: Final = 2**53
"""Of frames and interruptions of one call."""


def check_call(call: str) -> None:
    """Check the id of a call that begins.

    Raises:
        ProtocolError: it is none.
    """
    if not isinstance(call, str) or not 0 < len(call) <= MAX_CALL_CHARS:
        raise ProtocolError(f"a call's id is {call!r:.80}, not 1 to {MAX_CALL_CHARS} characters")


def read_open(message: messages.Open) -> SamplingParameters:
    """The parameters of a call that begins.

    Raises:
        UnsupportedError: a parameter, or the wait, is out of range.
    """
    check_number("wait_s", message.wait_s, MAX_WAIT_S)
    return read_parameters(message.parameters)


def read_claim(values: tuple[Any, ...]) -> ResumeClaim:
    """What a caller shows who goes on with a call of another connection.

    Raises:
        UnsupportedError: a part of it is out of range.
    """
    claim = ResumeClaim(*values)
    for key in (claim.key, claim.new_key):
        check_key(key)
    check_owner(claim.owner)
    for name, value in (("seq", claim.seq), ("frame", claim.frame)):
        check_number(name, value + 1, MAX_COUNT, is_whole=True)  # -1 is none
    check_number("replay_frames", claim.replay_frames, MAX_FLUSH_FRAMES, is_whole=True)
    return claim


def read_notes(notes: tuple[Any, ...]) -> tuple[Note, ...]:
    """Numbered messages of a call.

    Raises:
        UnsupportedError: one is too long, or has no number.
    """
    for seq, data in notes:
        check_number("seq", seq, MAX_COUNT, is_whole=True)
        if not isinstance(data, bytes) or len(data) > MAX_NOTE_BYTES:
            raise UnsupportedError(f"a message of {len(data)} bytes, the limit is {MAX_NOTE_BYTES}")
    return tuple((seq, data) for seq, data in notes)


def check_key(key: bytes) -> None:
    """Check the SHA-256 of a token.

    Raises:
        UnsupportedError: it is none.
    """
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise UnsupportedError(f"a token's hash has {KEY_BYTES} bytes; this is {key!r:.40}")


def check_owner(owner: str) -> None:
    """Check the name of an API key.

    Raises:
        UnsupportedError: it is too long.
    """
    if not isinstance(owner, str) or len(owner) > MAX_OWNER_CHARS:
        raise UnsupportedError(f"the name of a key has at most {MAX_OWNER_CHARS} characters")


def read_parameters(values: Mapping[str, Any]) -> SamplingParameters:
    """Sampling parameters, each in its range.

    Raises:
        UnsupportedError: one is not.
    """
    parameters = SamplingParameters(**values)
    check_parameters(parameters)
    return parameters


def check_words(entries: list[TextEntry], info: BackendInfo, *, room: int) -> None:
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
        for token in entry.tokens:
            check_number("a token", token, most, is_whole=True)
        check_number("padding_frames", entry.padding_frames, MAX_PADDING_FRAMES, is_whole=True)


def read_tail(message: messages.HearPadding, frame_samples: int) -> FloatArray:
    """The unfinished frame before flush padding.

    Raises:
        UnsupportedError: it is longer than a frame, or a number is out of range.
    """
    tail: FloatArray = np.frombuffer(message.tail, np.float32)
    if tail.size > frame_samples:
        raise UnsupportedError(f"an unfinished frame of {tail.size} samples; a frame has {frame_samples}")
    check_number("frames", message.frames, MAX_FLUSH_FRAMES, is_whole=True)
    for name, value in (("run", message.run), ("upto", message.upto)):
        check_number(name, value, MAX_COUNT, is_whole=True)
    check_number("now_s", message.now_s, MAX_COUNT)
    return tail


def read_sent(message: messages.Sent) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The latencies of replies, and of first audio, in seconds.

    Raises:
        ProtocolError: one of them is negative or no number, or a count is larger than their number.
    """
    latency_s, first_s = (
        np.frombuffer(data, np.float32).astype(np.float64)
        for data in (message.latencies, message.first_audio)
    )
    for seconds in (latency_s, first_s):
        if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
            raise ProtocolError("latencies that are no times")
    try:
        check_number("sent_s", message.sent_s, MAX_COUNT)
        check_number("late", message.late, latency_s.size, is_whole=True)
        check_number("pressing", message.pressing, latency_s.size, is_whole=True)
        check_number("refused", message.refused, 2**31 - 1, is_whole=True)
    except UnsupportedError as error:
        raise ProtocolError(str(error)) from error
    return latency_s, first_s


def check_number(name: str, value: Any, most: float, *, is_whole: bool = False) -> None:
    """Check that a value is a number from 0 to ``most``.

    Raises:
        UnsupportedError: it is not.
    """
    if fault := ValueRule(int if is_whole else float, 0, most).fault(value):
        raise UnsupportedError(f"{name} {fault.words}")
