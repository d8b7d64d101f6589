"""What answers a call: input goes in, replies come out. Here a row of an engine's model, audio both ways."""

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
"""How long a slow client kept something waiting that was ready at a time."""


class Participant(ABC, Generic[R]):
    """What answers a call with replies of the type ``R``; used on the event loop, where no method waits.

    ``is_full``: the client is to be read no further for now. ``is_done``: no reply comes any more.
    ``words`` were given to it, or written by it. ``kept_from`` is the first input frame whose reply
    may still come, after some were discarded; None once the client knows. At ``due_s`` :meth:`advance` has
    something to do, whatever else happens. ``name`` is what its use is recorded as, where that is not its
    model's, ``voice_spec`` the model whose audio it gives, where that is another one, and ``tokens_in`` and
    ``tokens_out`` those of a text model so far. ``session`` is the engine's, where there is one; its first
    ``lead_frames`` of input are not the client's.
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
        """Request a place; ``notify`` is called on the event loop whenever something has changed.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is none.
        """

    def put(self, pcm: FloatArray, received_s: float) -> None:
        """Audio of the client, float32 ``[N]``, that came at ``received_s`` of the engine's clock."""
        raise NotImplementedError

    def read(self, text: str) -> Iterator[int]:
        """Words of the client, a piece at each step, which yields how many there are in it."""
        raise NotImplementedError

    def mark(self, marker: int) -> None:
        """A place in the audio: its marker is a reply once all before it is written."""

    def obey(self, request: Any) -> None:
        """Do what only participants of this kind can be asked for; see :class:`Instruct`."""
        raise NotImplementedError

    def read_prompt(self, prompt: Prompt) -> None:
        """Read a prompt before anything else.

        Raises:
            AntiphonError: it comes too late, or is not taken.
        """
        if self.session is not None:
            self.session.prime(prompt)

    @property
    def waits_for_us(self) -> bool:
        """Whether the client's input waits to be answered, so that it has reason to be quiet."""
        return False

    @abstractmethod
    def advance(self, now_s: float, *, may_take: bool) -> Sequence[R]:
        """Do what can be done now; the replies that are new, in order, none unless they ``may_take``."""

    @abstractmethod
    def finish(self, now_s: float) -> None:
        """No more input comes."""

    @property
    def id(self) -> str:
        """The name of the session."""
        return "" if self.session is None else self.session.id

    @property
    def state(self) -> SessionState:
        """Where it is in its life."""
        return SessionState.QUEUED if self.session is None else self.session.state

    @property
    def reason(self) -> AntiphonError | None:
        """Why it is CLOSED, None where its owner closed it."""
        return None if self.session is None else self.session.error

    @property
    def parameters(self) -> SamplingParameters:
        """The sampling parameters from the next frame on."""
        return SamplingParameters() if self.session is None else self.session.parameters

    @property
    def is_idle(self) -> bool:
        """Whether all that came is answered."""
        return self.session is None or self.session.is_idle

    def begin(self, now_s: float) -> None:
        """There is a row, and the client knows."""

    def sent(self, reply: R, now_s: float, stalled_s: StalledSince) -> float:
        """A reply was handed to the network; returns seconds of audio in it that keep its client waiting."""
        return 0.0

    def stats(self) -> SessionStats:
        """What became of all frames so far."""
        return SessionStats() if self.session is None else self.session.stats()

    def close(self, error: AntiphonError | None = None) -> None:
        """Give the place back; again changes nothing."""
        if self.session is not None:
            self.session.close(error)


@dataclass(frozen=True, slots=True)
class Place:
    """A row of a model that is requested, or a place in the queue for ``wait_s``."""

    engine: EngineGroup
    parameters: SamplingParameters
    wait_s: float = 0.0
    prompt: Prompt | None = None

    async def take(self, notify: Notify) -> CallSession:
        """A session; a task that is cancelled meanwhile leaves none behind.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is none.
        """
        return await self.engine.submit(
            self.parameters, wait_s=self.wait_s, notify=notify, prompt=self.prompt
        )


class Talker(Participant[FrameReply]):
    """A row of a full-duplex model or of a codec: live, so that what is late gives way, both ways.

    ``listener`` hears what the model hears.
    """

    def __init__(self, model: ServedModel, place: Place, *, fills_gaps: bool = False) -> None:
        """Prepare; with ``fills_gaps`` the model hears without a pause, silence where audio is overdue."""
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
        """From now on silence stands in for overdue audio."""
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
        """Throw away input that waits, and replies not taken."""
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
