"""Calls between the two halves of a session beside the arrays: direct, or by messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from antiphon.backends.base import FloatArray, TextEntry
from antiphon.errors import AntiphonError
from antiphon.ipc.resumption import Note, Resumption
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters


class Link(Protocol):
    """The engine's half, as the caller's sees it. No call blocks; what comes for a closed one is ignored."""

    def position(self) -> int | None:
        """How many callers wait before this one, None when it does not wait."""
        ...

    def retry_after_s(self) -> int:
        """Seconds until a waiting session may expect its row."""
        ...

    def nudge(self) -> None:
        """There is a whole frame, or room for replies, that the engine may not know of."""
        ...

    def set_parameters(self, parameters: SamplingParameters) -> None:
        """Use other sampling parameters from the next frame on."""
        ...

    def prime(self, number: int, prompt: Prompt) -> None:
        """Let the row read a prompt; :meth:`Listener.primed` is called with its ``number`` after that."""
        ...

    def push_text(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words."""
        ...

    def end_text(self) -> None:
        """The text ends here, unless its last word said so."""
        ...

    def clear_text(self) -> None:
        """Throw away the words that wait."""
        ...

    def hear_padding(self, run: int, upto: int, frames: int, tail: FloatArray, now_s: float) -> None:
        """Let ``frames`` of silence be heard, ``upto`` in all; ``tail`` is an unfinished frame.

        Void once the caller's ``padding_run`` is beyond ``run``.
        """
        ...

    def arm(self, key: bytes, owner: str) -> None:
        """Let the call be resumed with the token that hashes to ``key``, with the API key ``owner``."""
        ...

    def note(self, notes: tuple[Note, ...], told_frame: int) -> None:
        """Numbered messages are about to be sent, and the text of replies to frames below ``told_frame``."""
        ...

    def acknowledge(self, seq: int) -> None:
        """The client has got numbered messages up to this one."""
        ...

    def detach(self) -> None:
        """The connection is gone: the row waits for another. The caller's half uses its lease no more."""
        ...

    def close(self) -> None:
        """Free the row, or the place in the queue; the caller's half uses its lease no more."""
        ...


class Listener(Protocol):
    """The caller's half, as the engine's sees it; called from any thread of the engine, never to wait."""

    @property
    def is_notified(self) -> bool:
        """Whether :meth:`tell` is wanted after each tick."""
        ...

    def admitted(self, lease: int) -> None:
        """The session owns a row; its lease is this one. Called under admission's lock."""
        ...

    def resumed(self, resumption: Resumption) -> None:
        """The session goes on with a call of another connection; :meth:`admitted` follows."""
        ...

    def moving(self) -> None:
        """The call is to go to another worker: let it go, as :meth:`Link.detach` does, and wait."""
        ...

    def primed(self, number: int) -> None:
        """The row has read the prompt of this number: frame 0 is what is pushed from now on."""
        ...

    def ended(self, error: AntiphonError) -> None:
        """The session is over, without its owner's request."""
        ...

    def tell(self) -> None:
        """Replies, room, or the place in the queue have changed."""
        ...


class Deliveries(Protocol):
    """Where the callers' halves of one model report the replies that they handed to sockets."""

    def sent(self, sent_s: float, latency_s: float, *, is_late: bool, is_pressing: bool) -> None:
        """A reply was handed on; ``is_pressing``: late by no fault of its peer."""
        ...

    def first_audio(self, seconds: float) -> None:
        """A session's first audio came so long after its first whole frame."""
        ...

    def refused(self, frames: int) -> None:
        """Frames found no slot in a full ring."""
        ...
