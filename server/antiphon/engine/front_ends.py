"""Executes requests of front ends, in this process or in others, on the engines.

All of this runs on the engines' control thread, whose event loop reads the messages.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

import numpy as np

from antiphon.backends.base import BackendInfo, FloatArray, TextEntry
from antiphon.engine.engine import SETTLE_S, Engine
from antiphon.engine.loop import EventWake
from antiphon.engine.sessions import EngineSession
from antiphon.errors import AntiphonError, HandOverError, ProtocolError, UnsupportedError
from antiphon.ipc import messages
from antiphon.ipc.client_context import Loop, LoopNotifier
from antiphon.ipc.engine_client import EngineClient
from antiphon.ipc.memory import NO_BELL, SharedArena
from antiphon.ipc.message_socket import MessageSocket, close_all, read_file
from antiphon.ipc.messages import Sent
from antiphon.log import Log
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters, check_parameters
from antiphon.models.script import MAX_WORD_TOKENS

MAX_CALLS: Final = 16_384
"""Limit on the calls of one front end, including ended ones that it has not closed; larger than its limit on
connections."""

STUCK_S: Final = 2.0
"""Seconds without reading a message after which a front end counts as dead."""


class FrontEndConnection:
    """The calls of one front end, on any of the engines.

    ``outbox`` holds the engines' messages for it; ``wake`` is called, from any thread, when a message is
    added.
    """

    def __init__(self, engines: Sequence[Engine], *, pool: int | None, wake: Callable[[], None]) -> None:
        """Start without calls; ``pool`` is None for a front end of this process."""
        self.outbox: deque[messages.Notice] = deque()
        self.calls: dict[str, tuple[Engine, EngineSession]] = {}
        self._engines, self._pool, self._wake = engines, pool, wake

    def send(self, notice: messages.Notice) -> None:
        """Put a message into the outbox, from any thread."""
        self.outbox.append(notice)
        self._wake()

    def handle(self, request: messages.Request, descriptors: Sequence[int]) -> None:
        """Execute a request of the front end; the caller keeps the descriptors and closes them.

        Raises:
            ProtocolError: the request is invalid and concerns no single call.
        """
        match request:
            case messages.Open() | messages.Resume():
                self._begin(request)
            case messages.Close(call):
                self._close(call)
            case messages.CallRequest(call):
                self._handle_call(call, request)
            case messages.Check(model, number, wait_s):
                self._check(self._engine(model), number, wait_s)
            case messages.Adopt(model):
                self._adopt(self._engine(model), request, descriptors)
            case messages.Lag(model, lag_s):
                host = "loop" if self._pool is None else f"front end {self._pool + 1}"
                self._engine(model).note_host(host, lag_s)
            case messages.Sent(model):
                check_sent(request)
                self._engine(model).record_sent(request)

    def _engine(self, model: int) -> Engine:
        if model >= len(self._engines):
            raise ProtocolError(f"model {model} of {len(self._engines)}")
        return self._engines[model]

    def _begin(self, request: messages.Open | messages.Resume) -> None:
        """Admit a caller, or let it resume a call."""
        engine, call = self._engine(request.model), request.call
        if call in self.calls or len(self.calls) >= MAX_CALLS:
            raise ProtocolError(f"a front end opened call {call} twice, or more than {MAX_CALLS}")
        try:
            if isinstance(request, messages.Resume):
                session = engine.session(call, SamplingParameters(), send=self.send, pool=self._pool)
                self.calls[call] = engine, session
                engine.sessions.claim(session, request.claim)
                return
            check_parameters(request.parameters)
            if (prompt := request.prompt) is not None:
                check_prompt(prompt)
            session = engine.session(call, request.parameters, send=self.send, pool=self._pool, prompt=prompt)
            self.calls[call] = engine, session
            engine.sessions.admit(session, request.wait_s)
            engine.sessions.announce_place(session)
        except AntiphonError as error:
            self.calls.pop(call, None)
            self.send(messages.Refused(call, error))
        finally:
            engine.plan()

    def _handle_call(self, call: str, request: messages.CallRequest) -> None:
        if call not in self.calls:  # it has ended meanwhile, or never began
            if isinstance(request, messages.Unreadable):
                self.send(messages.Refused(call, UnsupportedError(request.words)))
            return
        engine, session = self.calls[call]
        try:
            self._tell(engine, session, request)
        except AntiphonError as error:  # an error of one call ends no other
            engine.sessions.end(session, error)

    def _tell(self, engine: Engine, session: EngineSession, request: messages.CallRequest) -> None:
        sessions = engine.sessions
        match request:
            case messages.SetParameters(_, _, parameters):
                check_parameters(parameters)
                sessions.pass_on(session, request)
            case messages.Prime(_, _, prompt):
                check_prompt(prompt)
                sessions.pass_on(session, request)
            case messages.Restart(_, _, prompt):
                if engine.info.spec.kind.takes_audio:
                    raise UnsupportedError("a session that takes audio has no text to restart")
                if prompt is not None:
                    check_prompt(prompt)
                sessions.pass_on(session, request)
            case messages.PushText(_, entries):
                check_words(
                    entries, engine.info, room=engine.config.text_entries - sessions.words_waiting(session)
                )
                sessions.pass_on(session, request)
            case messages.FeedPadding(_, _, _, _, tail):
                check_tail(tail, engine.info.spec.frame_samples)
                sessions.pass_on(session, request)
            case messages.EndText() | messages.ClearText():
                sessions.pass_on(session, request)
            case messages.Arm(_, key, owner):
                sessions.resuming.arm(session, key, owner)
            case messages.Noted():
                sessions.add_notes(session, request)
            case messages.Acknowledge(_, seq):
                sessions.resuming.acknowledge(session, seq)
            case messages.Detach():
                sessions.detach(session)
                engine.plan()
            case messages.Unreadable(_, words):
                raise UnsupportedError(words)

    def _check(self, engine: Engine, number: int, wait_s: float) -> None:
        try:
            engine.sessions.check_room(wait_s)
        except AntiphonError as error:
            self.send(messages.Checked(number, error))
        else:
            self.send(messages.Checked(number, None))

    def _adopt(self, engine: Engine, request: messages.Adopt, descriptors: Sequence[int]) -> None:
        """Accept a call from another worker; its bytes are read on another thread."""
        try:
            memory = [os.dup(descriptor) for descriptor in descriptors[:1]]
        except OSError as error:
            self.send(messages.Checked(request.number, HandOverError(f"no open file is left: {error}")))
            return

        def read() -> bytes:
            return request.data or b"".join(read_file(it, engine.call_bytes) for it in memory)

        def answer(taken: Future[None]) -> None:
            close_all(memory)
            error = taken.exception()
            self.send(messages.Checked(request.number, error if isinstance(error, AntiphonError) else None))

        engine.take_call(read).add_done_callback(answer)

    def _close(self, call: str) -> None:
        engine, session = self.calls.pop(call, (None, None))
        if engine is None or session is None:
            return
        engine.sessions.let_go(session)
        if session.leased is not None:
            engine.sessions.leases.let_go([session.leased])
        engine.plan()

    def give_up(self, reason: str) -> Iterator[tuple[Engine, list[int]]]:
        """End the calls of a front end that has failed, one at each step; yields the engine of each and its
        lease, if it has one, to which the front end's process may still write.
        """
        while self.calls:  # the newest first: callers that wait leave before rows become free
            call, (engine, session) = self.calls.popitem()
            try:
                _part(call, engine, session, f"its front end was dropped: {reason}")
            except Exception as error:  # a boundary: the other calls end nevertheless
                Log(__name__).error("a call could not be closed", session=call, exc_info=error)
            yield engine, [] if session.leased is None else [session.leased]
        for engine in self._engines:
            engine.plan()


def _part(call: str, engine: Engine, session: EngineSession, reason: str) -> None:
    """End a call whose front end has ended, or keep it for another connection."""
    session.orphan()
    if session.resumable is not None and session.lease is not None:
        Log(__name__).warning("session detached", session=call, reason=reason)
        engine.sessions.detach(session)
        return
    Log(__name__).warning("session ends", session=call, reason=reason)
    engine.metrics.abandoned.inc()
    engine.sessions.let_go(session)


def facts_of(name: str, engine: Engine) -> messages.EngineFacts:
    """The description of an engine for a front end."""
    arena = engine.rows.arena
    pools, leases = 1, arena.leases
    if isinstance(arena, SharedArena):
        pools, leases = arena.plan.pools, arena.plan.leases
    limits = engine.config.text_entries, engine.call_bytes
    return messages.EngineFacts(name, engine.info, arena.shape, pools, leases, *limits, engine.health())


class LocalFrontEnd:
    """The front end of a single-process server; messages are passed as objects, on its event loop.

    The loop's thread is the control thread, so requests are executed at once.
    """

    def __init__(self, engines: Mapping[str, Engine], loop: Loop) -> None:
        """Connect to started engines by name; ``client`` has their ports."""
        self.client = EngineClient(self._post, loop)
        self.connection = FrontEndConnection(
            tuple(engines.values()), pool=None, wake=LoopNotifier(loop, self._take).notify
        )
        bell = LoopNotifier(loop, self.client.changes.look)
        for name, engine in engines.items():
            arena, facts = engine.rows.arena, facts_of(name, engine)
            arena.bells.append(bell.notify)
            engine.controlled_by(LoopNotifier(loop, partial(self._settle, name, engine)).notify)
            self.client.add(facts, arena, engine.wake.nudge, drain=engine.drain, health=engine.health)

    def _settle(self, name: str, engine: Engine) -> None:
        engine.settle()
        self.client.engines[name].change()

    def _post(self, request: messages.Request, descriptors: Sequence[int]) -> None:
        self.connection.handle(request, descriptors)
        if isinstance(request, messages.Open | messages.Resume | messages.Check):
            self._take()  # the answer has arrived

    def _take(self) -> None:
        while self.connection.outbox:
            self.client.handle(self.connection.outbox.popleft())


class FrontEndServer:
    """Front ends in other processes, on one event loop; each has a pool of every engine's leases.

    ``on_dropped`` is called at once with the pool of a front end that has ended or no longer reads messages.
    When its process has been reaped, :meth:`take_back` frees its leases; until then the process may write to
    them. A front end may have hundreds of calls: each turn of the event loop ends calls, or clears leases,
    for ``SETTLE_S``.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        loop: Loop,
        *,
        on_dropped: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect to started engines, made with ``pools`` and an ``EventWake``."""
        self._names, self._engines = tuple(engines), tuple(engines.values())
        self._loop, self._on_dropped, self._clock = loop, on_dropped, clock
        self._front_ends: dict[int, tuple[FrontEndConnection, MessageSocket[messages.Request]]] = {}
        self._bells: dict[int, int] = {}  # one per pool, never closed: an engine may be about to signal it
        self._held: dict[int, list[tuple[Engine, list[int]]]] = {}
        self._joining: dict[int, socket.socket] = {}  # front ends that wait for earlier work
        self._work: deque[Iterator[None]] = deque()  # the first has begun
        self._more = LoopNotifier(loop, self._continue)
        for engine in self._engines:
            engine.controlled_by(LoopNotifier(loop, engine.settle).notify)

    def stop(self) -> None:
        """End all calls; the engines continue, and may still signal the front ends' wake-ups."""
        self._finish()
        for pool in tuple(self._front_ends):
            self._drop(pool, "the engine's process shuts down")
            self.take_back(pool)
        self._finish()

    def close(self) -> None:
        """Close the front ends' wake-ups; call it after the engines have stopped."""
        close_all(tuple(self._bells.values()))

    def add(self, pool: int, control: socket.socket) -> None:
        """Add a front end on a free pool; ``control`` is one end of its SOCK_SEQPACKET pair."""
        self._joining[pool] = control
        self._do(self._join(pool))

    def _join(self, pool: int) -> Iterator[None]:
        """Begin to serve a front end, unless its process has ended meanwhile."""
        if (control := self._joining.pop(pool, None)) is None:
            return
        notifier = LoopNotifier(self._loop, partial(self._flush, pool))
        connection = FrontEndConnection(self._engines, pool=pool, wake=notifier.notify)
        posted = MessageSocket(
            control, messages.REQUESTS, partial(self._handle, connection), lost=partial(self._drop, pool)
        )
        self._front_ends[pool] = connection, posted
        try:
            self._greet(pool, posted)
        except OSError as error:
            self._drop(pool, f"the hello could not be sent: {error.strerror}")
        yield

    def _greet(self, pool: int, posted: MessageSocket[messages.Request]) -> None:
        if pool not in self._bells:
            self._bells[pool] = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        facts, descriptors = [], [self._bells[pool]]
        for name, engine in zip(self._names, self._engines, strict=True):
            arena, wake = engine.rows.arena, engine.wake
            assert isinstance(arena, SharedArena)
            assert isinstance(wake, EventWake)
            arena.slabs[pool].bell = self._bells[pool]
            facts.append(facts_of(name, engine))
            descriptors += [arena.descriptor, wake.descriptor]
        posted.send(messages.Hello(pool, tuple(facts)), descriptors)

    def take_back(self, pool: int) -> None:
        """Free all leases of a front end whose process has ended."""
        if (control := self._joining.pop(pool, None)) is not None:
            control.close()
        if pool in self._front_ends:
            self._front_ends[pool][1].read_rest()  # clients may have messages whose notes are still there
        self._drop(pool, "its process has ended")
        self._do(self._clean(pool))

    def _clean(self, pool: int) -> Iterator[None]:
        """Release the leases that an ended process held, and clear those to which it may have written."""
        for engine in self._engines:
            arena = engine.rows.arena
            assert isinstance(arena, SharedArena)
            arena.slabs[pool].bell = NO_BELL
            yield from engine.sessions.leases.clean(pool)
        for engine, leases in self._held.pop(pool, []):  # these are cleared as they become free
            engine.sessions.leases.let_go(leases)
            yield

    def watch_front_ends(self) -> None:
        """Report the engines' health several times a second, and drop front ends that read no messages."""
        health = [messages.HealthNow(model, engine.health()) for model, engine in enumerate(self._engines)]
        for pool, (_, posted) in tuple(self._front_ends.items()):
            if posted.congested_s > STUCK_S:
                self._drop(pool, "it reads no messages")
            elif not posted.is_congested:
                for notice in health:
                    posted.send(notice)

    def _handle(
        self, connection: FrontEndConnection, request: messages.Request, descriptors: Sequence[int]
    ) -> None:
        try:
            connection.handle(request, descriptors)
        except AntiphonError as error:
            raise ProtocolError(str(error)) from error
        except Exception as error:  # a boundary: it drops this front end, and the others continue
            Log(__name__).error("a front end could not be served", exc_info=error)
            raise ProtocolError(f"it could not be served: {error!r}") from error
        finally:
            close_all(descriptors)

    def _flush(self, pool: int) -> None:
        """Send the engines' messages to a front end."""
        if pool not in self._front_ends:  # it was dropped meanwhile
            return
        connection, posted = self._front_ends[pool]
        try:
            while connection.outbox:
                posted.send(connection.outbox.popleft())
        except OSError as error:
            self._drop(pool, f"a message could not be sent: {error.strerror}")

    def _drop(self, pool: int, reason: str) -> None:
        connection, posted = self._front_ends.pop(pool, (None, None))
        if connection is None or posted is None:
            return
        posted.close()
        log = Log(__name__).warning if connection.calls else Log(__name__).info
        log("front end dropped", pool=pool, calls=len(connection.calls), reason=reason)
        held = self._held[pool] = []

        def end_calls() -> Iterator[None]:
            for each in connection.give_up(reason):
                held.append(each)
                yield

        self._on_dropped(pool)  # first: the pool may be another front end's before all calls have ended
        self._do(end_calls())

    def _do(self, work: Iterator[None]) -> None:
        """Do work in steps, after all earlier work."""
        self._work.append(work)
        if len(self._work) == 1:
            self._continue()

    def _continue(self) -> None:
        """Do steps for ``SETTLE_S``, and the others in another turn of the event loop."""
        end_s = self._clock() + SETTLE_S
        try:
            while self._work and self._clock() < end_s:
                if next(self._work[0], True):
                    self._work.popleft()
        finally:
            if self._work:
                self._more.notify()

    def _finish(self) -> None:
        while self._work:
            self._continue()


MAX_PADDING_FRAMES: Final = 4096
"""The longest pause after a word in frames: 125 frames, ten seconds."""

PROMPT_AXES: Final = {"frames": 2, "voice": 2, "embedded": 2, "speakers": 3, "keys_values": 5}


def check_prompt(prompt: Prompt) -> None:
    """Check the arrays of a prompt.

    Raises:
        UnsupportedError: an array has other axes, or holds a NaN or infinity.
    """
    for name, axes in PROMPT_AXES.items():
        array = getattr(prompt, name)
        if array is not None and array.ndim != axes:
            raise UnsupportedError(f"{name} of a prompt has {array.ndim} axes, not {axes}")
        if array is not None and not np.isfinite(array).all():
            raise UnsupportedError(f"{name} of a prompt holds a NaN or an infinity")


def check_words(entries: Sequence[TextEntry], info: BackendInfo, *, room: int) -> None:
    """Check words for a tts row with room for ``room`` of them.

    Raises:
        UnsupportedError: there are more words, or a token, a length or a pause is out of range.
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
    """Check the length of the unfinished frame to which silence will be added.

    Raises:
        UnsupportedError: it is longer than a frame.
    """
    if tail.size > frame_samples:
        raise UnsupportedError(f"an unfinished frame of {tail.size} samples; a frame has {frame_samples}")


def check_sent(sent: Sent) -> None:
    """Check the latencies of replies, and of first audio.

    Raises:
        ProtocolError: a latency is negative or NaN, or a count is larger than their number.
    """
    for seconds in (sent.latency_s, sent.first_audio_s):
        if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
            raise ProtocolError("invalid latencies")
    if max(sent.late, sent.pressing) > sent.latency_s.size:
        raise ProtocolError(f"{sent.late} late and {sent.pressing} pressing of {sent.latency_s.size} replies")
