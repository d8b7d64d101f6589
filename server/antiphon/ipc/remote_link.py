"""The sender of one session's messages, and of one model's deliveries, to an engine in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, Protocol

import numpy as np

from antiphon.backends.base import FloatArray, TextEntry
from antiphon.ipc import messages
from antiphon.ipc.post import Post
from antiphon.ipc.resumption import Note
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

WORDS_A_MESSAGE: Final = 6
"""So many of the longest words, 4096 letters and 256 tokens each, fit ``MESSAGE_BYTES``."""

BATCH_S: Final = 0.02
"""Deliveries are reported at most so often: a quarter of a frame."""

MAX_BATCH: Final = 2048
"""Deliveries of one report, so that it fits the socket."""


class Remote(Protocol):
    """The engine of another process, as far as one session needs it."""

    def nudge(self) -> None:
        """Wake the engine thread."""
        ...

    def leave(self, name: str, lease: int | None) -> None:
        """The session has closed."""
        ...


class RemoteLink:
    """:class:`antiphon.ipc.link.Link` by messages; ``place`` is the last known one in the queue."""

    def __init__(self, engine: Remote, post: Post, call: str) -> None:
        """Speak for one call."""
        self.place: tuple[int | None, int] = None, 1
        self._engine, self._post, self._call = engine, post, call
        self._is_closed = False
        self.lease: int | None = None

    def position(self) -> int | None:
        """How many callers waited before this one when the engine last said so."""
        return self.place[0]

    def retry_after_s(self) -> int:
        """Seconds until it may expect its row, as the engine last said."""
        return self.place[1]

    def nudge(self) -> None:
        """Wake the engine thread."""
        self._engine.nudge()

    def set_parameters(self, parameters: SamplingParameters) -> None:
        """Use other parameters from the next frame on."""
        self._post.send(messages.SetParameters(self._call, asdict(parameters)))

    def prime(self, number: int, prompt: Prompt) -> None:
        """Let the row read a prompt."""
        parts, data = messages.pack_prompt(prompt)
        self._post.send_with(messages.Prime(self._call, number, parts), data)

    def push_text(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words."""
        words = messages.pack_words(list(entries))
        for start in range(0, len(words), WORDS_A_MESSAGE):
            part = words[start : start + WORDS_A_MESSAGE]
            self._post.send(messages.Words(self._call, part, received_s))

    def end_text(self) -> None:
        """The text ends here."""
        self._post.send(messages.EndText(self._call))

    def clear_text(self) -> None:
        """Throw away the words that wait."""
        self._post.send(messages.ClearText(self._call))

    def hear_padding(self, run: int, upto: int, frames: int, tail: FloatArray, now_s: float) -> None:
        """Let silence be heard."""
        self._post.send(messages.HearPadding(self._call, run, upto, frames, tail.tobytes(), now_s))

    def arm(self, key: bytes, owner: str) -> None:
        """Let the call be resumed."""
        self._post.send(messages.Arm(self._call, key, owner))

    def note(self, notes: tuple[Note, ...], told_frame: int) -> None:
        """Numbered messages are about to be sent."""
        self._post.send(messages.Noted(self._call, notes, told_frame))

    def acknowledge(self, seq: int) -> None:
        """The client has got numbered messages up to this one."""
        self._post.send(messages.Acknowledge(self._call, seq))

    def detach(self) -> None:
        """The connection is gone."""
        self._post.send(messages.Detach(self._call))

    def close(self) -> None:
        """Use the lease no more, and say so."""
        if not self._is_closed:
            self._is_closed = True
            self._post.send(messages.Close(self._call))
            self._engine.leave(self._call, self.lease)


class BatchedDeliveries:
    """:class:`antiphon.ipc.link.Deliveries` as one message for many replies."""

    def __init__(self, loop: asyncio.AbstractEventLoop, post: Post, model: int) -> None:
        """Report for one model."""
        self._loop, self._post, self._model = loop, post, model
        self._latency_s: list[float] = []
        self._first_s: list[float] = []
        self._sent_s = 0.0
        self._late = self._pressing = self._refused = 0
        self._is_called = False

    def sent(self, sent_s: float, latency_s: float, *, is_late: bool, is_pressing: bool) -> None:
        """A reply was handed to a socket."""
        self._sent_s = sent_s
        self._latency_s.append(latency_s)
        self._late += is_late
        self._pressing += is_pressing
        self._report_soon()

    def first_audio(self, seconds: float) -> None:
        """A session's first audio came."""
        self._first_s.append(seconds)
        self._report_soon()

    def refused(self, frames: int) -> None:
        """Frames found no slot in a full ring."""
        self._refused += frames
        self._report_soon()

    def _report_soon(self) -> None:
        if len(self._latency_s) >= MAX_BATCH:
            self._report()
        elif not self._is_called:
            self._is_called = True
            self._loop.call_later(BATCH_S, self._report_later)

    def _report_later(self) -> None:
        self._is_called = False
        self._report()

    def _report(self) -> None:
        latencies, first = (np.array(it, np.float32).tobytes() for it in (self._latency_s, self._first_s))
        counts = self._late, self._pressing, first, self._refused
        self._post.send(messages.Sent(self._model, self._sent_s, latencies, *counts))
        self._latency_s, self._first_s = [], []
        self._late = self._pressing = self._refused = 0
