"""The base of all conversations, of any protocol and transport: a session, and one end.

A conversation's waker, woken by its peer and by the engine, moves what can be moved and notices what changed:
admission, an error.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from antiphon.errors import AntiphonError, MovedError, ReplacedError, SessionFailedError
from antiphon.ipc.engine_client import CallSession, EnginePort, Notify
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.access.usage import UsageRecord
from antiphon.serve.hosting.observation import Observation
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services


class Conversation(ABC):
    """From admission to the end; everything here runs on the event loop."""

    def __init__(self, services: Services, model: ServedModel, *, caller: Caller = ANYBODY) -> None:
        """Prepare, for a ``caller``, whom the log has by name."""
        self.caller = caller
        self._services, self._model = services, model
        self._limits = services.config.limits
        self._clock = services.clock
        facts = {"model": model.name, **({"key": caller.name} if caller.name else {})}
        self._log = services.log.bind(**facts)
        self._provoked = services.provoked.bind(**facts)
        self._waker = services.turns.waker(self._turn, self._fail)
        self._session: CallSession | None = None
        self._opened_s = self._clock()
        # Earlier ones went over other connections of the call, which have recorded them, or could not.
        self._first_frame = self._first_reply = self._unrecorded_out = 0
        self._at_end: list[Callable[[], None]] = []  # what gives back what a subclass holds
        self._ending: asyncio.Task[None] | None = None
        self._is_over = False
        self._observation: Observation | None = None

    async def _submit(
        self,
        parameters: SamplingParameters,
        *,
        wait_s: float,
        prompt: Prompt | None = None,
        **facts: Any,
    ) -> CallSession:
        """Ask the engine for a session: a row at once, or a place in the queue. ``facts`` are for the log.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is none.
        """
        session = await open_session(
            self._model.engine,
            parameters,
            wait_s=wait_s,
            notify=self._waker.wake,
            prompt=prompt,
        )
        self._session = session
        self._observe(session)
        self._log = self._log.bind(session=session.id)
        self._provoked = self._provoked.bind(session=session.id)
        self._log.info("session opened", state=session.state, **facts)
        return session

    def _observe(self, session: CallSession) -> None:
        """Watch the call, where its model is on trial."""
        desk = self._services.canary
        self._observation = None if desk is None else desk.observe(self._model, session)

    def abandon(self) -> None:
        """Give everything back; safe at any time, and again."""
        session = self._session
        if session is not None:
            if not self._is_over:
                self._account(session)
            session.close()
        if not self._is_over:
            self._is_over = True
            for release in self._at_end:
                release()
            self._waker.close()

    def _account(self, session: CallSession) -> None:
        """Keep what was used here, and how the call went where it does not go on elsewhere."""
        if (used := self._used(session)).seconds:
            self._services.access.ended(used)
        desk, seen = self._services.canary, self._observation
        if desk is not None and seen is not None:
            goes_on = isinstance(session.error, ReplacedError | MovedError)
            desk.ended(self._model, self.caller, seen, session, goes_on=goes_on)

    @property
    def words(self) -> int:
        """Words written, heard or said so far, as far as the protocol has any."""
        return 0

    @property
    def seconds(self) -> float:
        """Seconds of audio so far over this connection, of the direction that has more."""
        return 0.0 if self._session is None else self._used(self._session).seconds

    def _used(self, session: CallSession) -> UsageRecord:
        stats, spec = session.stats(), self._model.engine.info.spec
        heard = 0 if spec.kind is PipelineKind.TTS else stats.frames_in - self._first_frame
        said = 0 if spec.kind is PipelineKind.STT else max(0, stats.frames_out - self._first_reply)
        return UsageRecord(
            ended=self._services.access.usage.stamp(),
            session=session.id if session.resumption is None else session.resumption.call,
            key=self.caller.name,
            model=self._model.name,
            seconds_in=round(heard * spec.frame_ms / 1000, 2),
            seconds_out=round((said + self._unrecorded_out) * spec.frame_ms / 1000, 2),
            words=self.words,
        )

    @property
    def can_move(self) -> bool:
        """Whether its client can go on with it at another worker."""
        return False

    def announce_draining(self, deadline_s: float) -> None:  # noqa: B027 - most protocols have none
        """Tell a client how long it may go on, where its protocol has a word for it."""

    @abstractmethod
    def end(self, error: AntiphonError | None = None) -> None:
        """Begin to end from our side; again changes nothing."""

    async def closed(self) -> None:
        """Wait until a close that :meth:`end` began is over."""
        if self._ending is not None:
            await self._ending

    @abstractmethod
    def _turn(self) -> bool:
        """Go on; true when there is more to do."""

    def _fail(self, error: Exception) -> None:
        """A turn failed; without a word for it the fault is our own."""
        if isinstance(error, AntiphonError):
            self.end(error)
            return
        self._log.error("turn failed", exc_info=error)
        self.end(SessionFailedError(f"the server could not go on: {type(error).__name__}"))


async def open_session(
    engine: EnginePort,
    parameters: SamplingParameters,
    *,
    wait_s: float,
    notify: Notify,
    prompt: Prompt | None = None,
) -> CallSession:
    """A session of an engine; a task that is cancelled meanwhile leaves none behind.

    Raises:
        ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is none.
    """
    submitted = asyncio.ensure_future(engine.submit(parameters, wait_s=wait_s, notify=notify, prompt=prompt))
    try:
        return await asyncio.shield(submitted)
    except asyncio.CancelledError:
        submitted.add_done_callback(_give_back)
        raise


def _give_back(submitted: asyncio.Future[CallSession]) -> None:
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().close()
