"""Runs a server: starts its engines and then its front ends, and shuts them down.

Engines and front ends are processes, or tasks of this process. The supervisor replaces a front end that ends
or does not respond. If one of several engines (one per device) ends, only its calls end. If the last engine
ends, the server ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from antiphon.canary.kept import KeptTrial
from antiphon.canary.trial import Phase, TrialRules
from antiphon.ipc.message_socket import Handle, close_all
from antiphon.log import Log
from antiphon.metrics import MetricFamilies, make_metric
from antiphon.supervisor.answers import Answers, join_traces
from antiphon.supervisor.children import PING_PERIOD_S, SILENT_S, Child, next_pause_s
from antiphon.supervisor.connection_bounds import ConnectionLimits
from antiphon.supervisor.dispatcher import Dispatcher
from antiphon.supervisor.hangs import Hangs
from antiphon.supervisor.messages import (
    BeginDrain,
    CanaryPhase,
    ControlReply,
    Cut,
    Drain,
    Drained,
    GoneFrontEnd,
    Leave,
    Link,
    Load,
    Lost,
    Message,
    Reread,
    Stuck,
    Traced,
)
from antiphon.supervisor.shared import SharedState


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorPlan:
    """The plan of a server, with all its time limits.

    ``start_engine``, ``start_front_end`` and ``begin_front_end`` are methods of :class:`ChildProcesses`.
    ``leave_s`` limits the time that a child takes to end. ``announce`` gets the engines' description once
    callers can connect. Unless it ``replaces`` front ends, the server ends when the first of them ends. The
    children's recordings are written to ``trace_file``. ``canary`` has the rules if a model is on trial.
    ``families`` are the metrics of connections; None creates them.
    """

    start_engine: Callable[[int, Handle[Message]], Awaitable[Child]]
    start_front_end: Callable[[int, Handle[Message]], Awaitable[Child]]
    begin_front_end: Callable[[int, Child, Sequence[Child]], None]
    front_ends: int
    engines: int = 1
    listeners: Sequence[socket.socket]
    limits: ConnectionLimits
    counted_address: Callable[[str], str]
    announce: Callable[[Sequence[str]], None]
    drain_s: float
    leave_s: float
    replaces: bool = True
    trace_file: Path | None = None
    canary: TrialRules | None = None
    families: MetricFamilies | None = None


EXIT_NONE_LEFT = 70
EXIT_CODES: Final = {signal.SIGTERM: 0, signal.SIGINT: 130}

START_S = 60.0
"""Seconds within which a front end must be ready; it takes about one second on an idle machine."""

UNSERVED_S = 60.0
"""Seconds after which the server ends if no front end can start; until then it tries again."""

TRACE_S = 5.0
"""Seconds for a process to send its recording."""

CUT_S = 5.0
"""Seconds for front ends to close the remaining calls at the end of draining."""

KILLED_S = 5.0
"""Seconds for killed processes to end. A process that a driver blocks in the kernel may end much later, or
never."""


class Supervisor:
    """Runs a :class:`SupervisorPlan` on the event loop on which it was made."""

    def __init__(self, plan: SupervisorPlan, log: Log | None = None) -> None:
        """Begin without processes."""
        self._plan = plan
        self._log = log or Log()
        registry = CollectorRegistry()
        self._dispatcher = Dispatcher(
            plan.listeners,
            plan.limits,
            counted_address=plan.counted_address,
            families=plan.families or MetricFamilies(registry),
            log=self._log,
        )
        self._shared = SharedState()
        if plan.canary is not None:
            self._shared.trial = KeptTrial(
                plan.canary, registry=registry, log=self._log, on_phase=self._announce_phase
            )
        self._restarts = make_metric(Counter, "front_end_restarts", registry)
        self.answers = Answers(
            registry,
            engines=lambda: self._running_engines,
            shares=lambda: self._dispatcher.shares,
            wanted=plan.front_ends,
        )
        self._shared.answer = self.answers.of
        self._engines: list[Child] = []
        self._front_ends: dict[int, Child] = {}
        self._waiting: dict[int, Child] = {}  # front ends that import their modules
        self._drained: set[int] = set()
        self._signals: list[signal.Signals] = []
        self._lost = ""
        self.opened = asyncio.Event()  # for callers
        self._unserved_s = 0.0  # without a front end that is ready
        self._target: str | None = None  # the worker that calls move to, once an operator has set it
        self._is_leaving = False
        self._traced: set[int] = set()  # the engines whose recording is complete
        self._hangs = Hangs()
        self._saving: asyncio.Future[None] | None = None
        self._changed = asyncio.Event()

    async def run(self) -> int:
        """Run the server; return the exit code once every process has ended.

        Raises:
            ConfigError: a process cannot start; the message is the process's own.
        """
        # Before anything else: without a handler, process 1 of a container does not get the signal.
        for number in EXIT_CODES:
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reread)
        signalled = asyncio.create_task(self._until(lambda: bool(self._signals)))
        tasks = [asyncio.create_task(self._watch()), signalled]
        starting = asyncio.create_task(self._start())
        try:
            await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return EXIT_CODES[self._signals[0]]
            tasks += await starting
            await self._until(
                lambda: (
                    bool(self._signals or self._lost or self._target is not None) or not self._running_engines
                )
            )
            has_target = self._target is not None
            code = EXIT_CODES[self._signals[0]] if self._signals else 0 if has_target else EXIT_NONE_LEFT
            await self._drain()
            await (self._saving or self._save_trace())
            return code if self._running_engines and not self._lost else EXIT_NONE_LEFT
        finally:
            starting.cancel()
            await asyncio.wait([starting])
            await self._end_all()
            for task in tasks:
                task.cancel()

    async def _start(self) -> list[asyncio.Task[None]]:
        """Start all processes and accept callers; returns the tasks that replace front ends."""
        for number in range(self._plan.engines):
            handle = functools.partial(self._handle_engine, number)
            self._engines.append(await self._plan.start_engine(number, handle))
        numbers = range(1, self._plan.front_ends + 1)
        for number in numbers:  # they import their modules while the engines load
            await self._start_front_end(number)
        # A signal cancels only this task.
        described = await asyncio.gather(*(asyncio.shield(engine.ready) for engine in self._engines))
        for engine in self._engines:
            engine.ended.add_done_callback(functools.partial(self._engine_ended, engine))
        if not self._running_engines:
            self._give_up("every engine has ended before the front ends have started")
            return []
        first = [self._begin_front_end(number) for number in numbers]
        await asyncio.gather(*(asyncio.shield(child.ready) for child in first))
        self._dispatcher.open()
        self.opened.set()
        self._plan.announce([line for ready in described for line in ready.lines])
        return [asyncio.create_task(self._keep(*each)) for each in zip(numbers, first, strict=True)]

    @property
    def _running_engines(self) -> list[Child]:
        return [engine for engine in self._engines if engine.is_alive]

    def _engine_ended(self, engine: Child, ended: asyncio.Future[int]) -> None:
        """End the calls of an ended engine; calls of other engines continue."""
        self._changed.set()
        self.answers.totals.ended(engine.name)
        if self._running_engines and not self._is_leaving:
            self._log.error("engine ended", engine=engine.device, code=ended.result())

    async def _start_front_end(self, number: int) -> None:
        """Start a front end, which serves after :meth:`_begin_front_end`."""
        handle = functools.partial(self._handle_front_end, number)
        self._waiting[number] = await self._plan.start_front_end(number, handle)

    def _begin_front_end(self, number: int) -> Child:
        """Let a started front end serve; connections go to it when it is ready."""
        child = self._waiting.pop(number)
        try:
            self._plan.begin_front_end(number, child, self._running_engines)
        except OSError:
            child.kill()
            raise
        self._front_ends[number] = child
        if (trial := self._shared.trial) is not None:
            child.peer.send(CanaryPhase(trial.trial.phase))
        child.ready.add_done_callback(
            lambda ready: None if ready.exception() else self._dispatcher.add(number, child)
        )
        return child

    async def _keep(self, number: int, child: Child) -> None:
        """Replace a front end whenever it ends, or give up."""
        loop = asyncio.get_running_loop()
        pause_s, began_s = 0.0, loop.time()
        while True:
            code = await child.ended
            lived_s = loop.time() - began_s
            self._bury(number, child)
            pause_s = next_pause_s(pause_s, lived_s)
            if self._is_leaving or not self._running_engines:
                return
            if not self._plan.replaces:
                self._give_up(f"the {child.name} ended with {code}")
                return
            log = self._log.bind(reason=child.failure) if child.failure else self._log
            log.error("front end ended", front_end=number, code=code, after_s=lived_s, pause_s=pause_s)
            self._restarts.inc()
            if (started := await self._start_again(number, pause_s)) is None:
                return
            child, began_s = started, loop.time()

    async def _start_again(self, number: int, pause_s: float) -> Child | None:
        """Replace a front end after a pause; None if the server shuts down meanwhile."""
        while True:
            await asyncio.sleep(pause_s)
            if self._is_leaving or not self._running_engines:
                return None
            try:
                await self._start_front_end(number)
                return self._begin_front_end(number) if self._running_engines else None
            except OSError as error:  # no files, processes or memory are free; ending calls free some
                pause_s = next_pause_s(pause_s, 0.0)
                self._log.error("front end not started", front_end=number, error=error.strerror)

    def _bury(self, number: int, child: Child) -> None:
        """Release the resources of a front end, after its process has been reaped."""
        self._dispatcher.remove(number)
        self._shared.gone(number)
        self.answers.totals.ended(child.name)
        for engine in self._running_engines:
            engine.peer.send(GoneFrontEnd(number))
        self._changed.set()

    async def _watch(self) -> None:
        """Request a heartbeat from every child, and kill those without one, except the last engine, which a
        health check reports.

        Only time in which this process ran counts, so that suspending this process kills no child.
        """
        last_s = (loop := asyncio.get_running_loop()).time()
        while True:
            await asyncio.sleep(PING_PERIOD_S)
            elapsed_s, last_s = loop.time() - last_s, loop.time()
            self._count_unserved(min(elapsed_s, 2 * PING_PERIOD_S))
            for child in self._children():
                child.beat(min(elapsed_s, 2 * PING_PERIOD_S))
                limit_s = SILENT_S if child.is_ready else START_S
                if child not in self._engines and child.silent_s > limit_s:
                    self._log.error("front end is silent", process=child.name, silent_s=child.silent_s)
                    child.kill()
            engines = [engine for engine in self._running_engines if engine.is_ready]
            for it in self._hangs.find(engines, min(elapsed_s, 2 * PING_PERIOD_S)):
                self._log.error("engine hangs", engine=it.device, silent_s=it.silent_s, stuck_s=it.stuck_s)
                it.kill()

    def _count_unserved(self, elapsed_s: float) -> None:
        """Shut down, for a restart by a service manager, when no front end has started for too long."""
        is_served = any(child.is_ready for child in self._front_ends.values())
        self._unserved_s = 0.0 if is_served or not self.opened.is_set() else self._unserved_s + elapsed_s
        if self._unserved_s > UNSERVED_S and not self._is_leaving and not self._lost:
            self._give_up(f"no front end has started for {UNSERVED_S:g} s")

    def _give_up(self, reason: str) -> None:
        self._lost = reason
        self._log.error("server gives up", reason=reason)
        self._changed.set()

    def _running_front_ends(self) -> Iterable[Child]:
        return [child for child in self._front_ends.values() if child.is_alive]

    def _children(self) -> Iterable[Child]:
        return [child for child in (*self._front_ends.values(), *self._engines) if child.is_alive]

    def _handle_engine(self, number: int, message: Message, _: Sequence[int]) -> ControlReply:
        match message:
            case Lost() if len(self._running_engines) > 1:
                self._log.error("device lost", engine=self._engines[number].device, reason=message.words)
                self._engines[number].kill()
            case Lost():
                self._lost = message.words
                self._changed.set()
            case Traced():
                self._traced.add(number)
                if {each for each, it in enumerate(self._engines) if it.is_alive} <= self._traced:
                    self._saving = asyncio.ensure_future(self._save_trace())
            case Stuck():
                for child in self._front_ends.values():
                    if child.pid == message.pid:
                        child.kill()
        return None

    def _handle_front_end(self, number: int, message: Message, descriptors: Sequence[int]) -> ControlReply:
        match message:
            case Link():
                self._pass_on(message, descriptors)
            case Load():
                self._dispatcher.report(number, message)
            case Drained():
                self._drained.add(number)
                self._changed.set()
            case BeginDrain(target, ""):
                self._target = target
                self._changed.set()
            case BeginDrain(target, device):
                self._drain_engine(device, target)
            case _:
                return self._shared.handle(number, message)
        return None

    def _pass_on(self, link: Link, descriptors: Sequence[int]) -> None:
        """Pass a link to its front end; if that one takes no messages, the link ends."""
        child = self._front_ends.get(link.front_end)
        try:
            if child is not None and child.is_ready and not child.peer.is_congested and descriptors:
                child.peer.send(link, descriptors)
        except OSError as error:
            self._log.warning("link not passed on", front_end=link.front_end, error=error.strerror)
        finally:
            close_all(descriptors)

    def _drain_engine(self, device: str, target: str) -> None:
        """Move the calls of one engine to others, or end them."""
        for engine in self._running_engines:
            if engine.device == device:
                self._log.info("engine drains", engine=device, target=target)
                engine.peer.send(Drain(self._plan.drain_s, target))

    def _announce_phase(self, phase: Phase) -> None:
        for child in self._running_front_ends():
            child.peer.send(CanaryPhase(phase))

    def _signalled(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._changed.set()

    def _reread(self) -> None:
        """Pass SIGHUP to front ends; one that is starting reads the files anyway."""
        for child in self._running_front_ends():
            child.peer.send(Reread())

    async def _until(self, is_so: Callable[[], bool], limit_s: float | None = None) -> None:
        """Wait until a condition holds, or the limit is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()

    def _are_drained(self) -> bool:
        alive = {number for number, child in self._front_ends.items() if child.is_alive}
        return alive <= self._drained

    async def _drain(self) -> None:
        """Let calls end within their time, then close them.

        The first signal starts the drain, a second one ends it. New callers still get a response.
        """
        self._is_leaving = True
        for child in self._children():
            child.peer.send(Drain(self._plan.drain_s, self._target or ""))
        await self._until(
            lambda: self._are_drained() or len(self._signals) > 1 or not self._running_engines,
            self._plan.drain_s,
        )
        if len(self._signals) > 1:
            for child in self._front_ends.values():
                child.peer.send(Cut())
        await self._until(self._are_drained, CUT_S)

    async def _save_trace(self) -> None:
        """Write the children's recordings, if requested, on a thread: calls continue."""
        if (file := self._plan.trace_file) is None:
            return
        children = list(self._children())
        answers = await asyncio.gather(*(child.answer("trace", TRACE_S) for child in children))
        recorded = {child.name: answer for child, answer in zip(children, answers, strict=True) if answer}
        try:
            await asyncio.to_thread(lambda: file.write_text(join_traces(recorded), encoding="utf-8"))
        except OSError as error:
            self._log.error("trace not written", file=file, error=error.strerror)
        else:
            self._log.info("trace written", file=file)

    async def _end_all(self) -> None:
        """End the front ends, then the engines; kill processes that do not end in time."""
        self._is_leaving = True
        self._dispatcher.close()
        for children in ([*self._front_ends.values(), *self._waiting.values()], self._engines):
            for child in children:
                if child.is_ready:
                    child.peer.send(Leave())
                else:
                    child.kill()  # it would read the message only after loading its model
            ends = [child.ended for child in children if child.is_alive]
            if ends:
                await asyncio.wait(ends, timeout=self._plan.leave_s)
            for child in children:
                child.kill()
            if ends:
                await asyncio.wait(ends, timeout=KILLED_S)
            for child in children:
                if child.is_alive:
                    self._log.error("process cannot be killed", process=child.name, pid=child.pid)
