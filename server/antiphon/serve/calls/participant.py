"""The answering side of a call: input in, replies out. The class in this module holds a row of an engine's
model with audio in both directions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from antiphon.audio.clock import InputClock
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AntiphonError
from antiphon.ipc.engine_client import CallSession, Notify
from antiphon.ipc.engine_group import EngineGroup
from antiphon.ipc.values import FrameReply, SessionState, SessionStats
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec
from antiphon.serve.hosting.served import ServedModel

R = TypeVar("R")

StalledSince = Callable[[float], float]
"""Seconds by which a slow client delayed data that was ready at a given time."""


class Participant(ABC, Generic[R]):
    """The answering side of a call, with replies of the type ``R``; used on the event loop, where no method
    waits.

    ``is_full``: the server reads nothing from the client for now. ``is_done``: no reply follows. ``words``
    counts words given to it, or transcribed by it. ``kept_from`` is the first input frame whose reply may
    still arrive after a flush; it is None once the client is notified. ``due_s`` is the time at which
    :meth:`advance` has work. ``name`` is its name in usage records, if it differs from the name of its model.
    ``voice_spec`` is the model of its audio, if that is another model. ``tokens_in`` and ``tokens_out`` count
    the tokens of a text model so far. ``session`` is the engine's session, if any; the first ``lead_frames``
    frames of its input are not the client's.
    """

    session: CallSession | None = None
    kept_from: int | None = None
    due_s = math.inf
    is_full = is_done = False
    words = lead_frames = tokens_in = tokens_out = 0
    name = ""
    voice_spec: ModelSpec | None = None

    @abstractmethod
    async def open(self, notify: Notify) -> None:
        """Request a row; ``notify`` is called on the event loop after every change.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is no row.
        """

    def put(self, pcm: FloatArray, received_s: float) -> None:
        """Add audio of the client, float32 ``[N]``, received at ``received_s`` of the engine's clock."""
        raise NotImplementedError

    def read(self, text: str) -> Iterator[int]:
        """Add words of the client; each step takes a piece and yields its number of words."""
        raise NotImplementedError

    def mark(self, marker: int) -> None:
        """Mark this position in the audio. The marker becomes a reply once everything before it is
        transcribed.
        """

    def obey(self, request: Any) -> None:
        """Carry out an action that only this kind of participant has; see :class:`Instruct`."""
        raise NotImplementedError

    def read_prompt(self, prompt: Prompt) -> None:
        """Read a prompt before any other input.

        Raises:
            AntiphonError: it is too late, or the model supports no prompts.
        """
        if self.session is not None:
            self.session.prime(prompt)

    @property
    def waits_for_us(self) -> bool:
        """Whether the client waits for an answer, and may therefore be silent."""
        return False

    @abstractmethod
    def advance(self, now_s: float, *, may_take: bool) -> Sequence[R]:
        """Advance as far as possible without waiting; return new replies in order, or none if ``may_take`` is
        false.
        """

    @abstractmethod
    def finish(self, now_s: float) -> None:
        """End the input."""

    @property
    def id(self) -> str:
        """The name of the session."""
        return "" if self.session is None else self.session.id

    @property
    def state(self) -> SessionState:
        """The state of the session."""
        return SessionState.QUEUED if self.session is None else self.session.state

    @property
    def reason(self) -> AntiphonError | None:
        """The error of a CLOSED session; None if its owner closed it."""
        return None if self.session is None else self.session.error

    @property
    def parameters(self) -> SamplingParameters:
        """The sampling parameters from the next frame on."""
        return SamplingParameters() if self.session is None else self.session.parameters

    @property
    def is_idle(self) -> bool:
        """Whether all input is answered."""
        return self.session is None or self.session.is_idle

    def begin(self, now_s: float) -> None:
        """Start: there is a row, and the client was notified."""

    def sent(self, reply: R, now_s: float, stalled_s: StalledSince) -> float:
        """Record a reply that was written to the network. Returns the seconds of its audio that count as the
        client's activity for the time limits; 0 if the client itself sends audio.
        """
        return 0.0

    def stats(self) -> SessionStats:
        """The numbers of frames so far, by outcome."""
        return SessionStats() if self.session is None else self.session.stats()

    def close(self, error: AntiphonError | None = None) -> None:
        """Release the row; a second call has no effect."""
        if self.session is not None:
            self.session.close(error)


@dataclass(frozen=True, slots=True)
class Place:
    """A requested row of a model, or a place in its queue for ``wait_s`` seconds."""

    engine: EngineGroup
    parameters: SamplingParameters
    wait_s: float = 0.0
    prompt: Prompt | None = None

    async def take(self, notify: Notify) -> CallSession:
        """Open a session; if the task is cancelled, no session remains.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is no row.
        """
        return await self.engine.submit(
            self.parameters, wait_s=self.wait_s, notify=notify, prompt=self.prompt
        )


class Talker(Participant[FrameReply]):
    """A row of a full-duplex model or of a codec: live, so late audio is dropped in both directions.

    ``listener`` gets the model's input.
    """

    def __init__(self, model: ServedModel, place: Place, *, fills_gaps: bool = False) -> None:
        """Prepare; with ``fills_gaps`` silence replaces overdue audio, so the model's input is continuous."""
        self.spec = model.engine.info.spec
        self.listener: Callable[[FloatArray], Any] | None = None
        self._place, self._fills_gaps = place, fills_gaps
        self._clock: InputClock | None = None
        self._has_begun = False

    async def open(self, notify: Notify) -> None:
        self.session = await self._place.take(notify)

    def begin(self, now_s: float) -> None:
        self._has_begun = True
        if self._fills_gaps:
            self.fill_gaps(now_s)

    def fill_gaps(self, now_s: float) -> None:
        """Replace overdue audio with silence from now on."""
        if self._clock is None:
            self._clock = InputClock(self.spec.sample_rate, self.spec.frame_samples, now_s)
            self.due_s = self._clock.due_s

    def put(self, pcm: FloatArray, received_s: float) -> None:
        if not self._has_begun:
            return
        if self._clock is not None:
            pcm = self._clock.arrive(pcm, received_s)
            self.due_s = self._clock.due_s
        self._push(pcm, received_s)

    def advance(self, now_s: float, *, may_take: bool) -> list[FrameReply]:
        session = self.session
        assert session is not None
        if self._clock is not None:
            self._push(self._clock.look(now_s), now_s)
            self.due_s = self._clock.due_s
        if not may_take:
            return []
        replies, interrupted_at = session.take_with_gap()
        if interrupted_at is not None:
            self.kept_from = max(interrupted_at, self.kept_from or 0)
        self.is_done = session.is_done
        return replies

    def flush(self) -> None:
        """Discard waiting input, and replies that were not taken."""
        if self.session is not None:
            self.kept_from = max(self.session.flush(), self.kept_from or 0)

    def sent(self, reply: FrameReply, now_s: float, stalled_s: StalledSince) -> float:
        assert self.session is not None
        self.session.sent(reply, now_s, stalled_s(reply.replied_s))
        return 0.0

    def finish(self, _now_s: float) -> None:
        if self.session is not None:
            self.session.finish()

    def _push(self, pcm: FloatArray, now_s: float) -> None:
        if pcm.size and self.session is not None:
            self.session.push(pcm, now_s)
            if self.listener is not None:
                self.listener(pcm)
