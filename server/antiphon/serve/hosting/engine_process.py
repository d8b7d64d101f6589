"""The engine's process: it has all models and their rows, and exchanges data with front ends through shared
memory and messages.

The supervisor starts it with ``python -m antiphon.serve.hosting.engine_process DESCRIPTOR PARENT``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import pickle
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import asdict
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry

from antiphon.config import ServerConfig
from antiphon.engine.front_ends import FrontEndServer
from antiphon.engine.trace import Tracer
from antiphon.errors import AntiphonError
from antiphon.ipc.message_socket import MessageSocket
from antiphon.log import set_up_logging
from antiphon.metrics import MetricFamilies
from antiphon.models.checkpoint import fingerprint
from antiphon.serve.hosting.engines import RunningEngine, lines_of, running_engines, show_progress
from antiphon.serve.operator.memory_metrics import watch_engine_process
from antiphon.serve.operator.otel import make_tracer, trace_of
from antiphon.supervisor import messages
from antiphon.supervisor.answers import read_registry
from antiphon.supervisor.child import run_child
from antiphon.supervisor.messages import Connect, ControlReply, Message

HEALTH_S: Final = 0.25
"""Seconds between reports of the engines' health to front ends."""

TRACE_POLL_S: Final = 0.1
"""Seconds between checks for a complete trace."""


class Engines:
    """Serves front ends with the engines of this process, until the supervisor ends it; made on the event
    loop of the main thread.
    """

    def __init__(
        self,
        connect: Connect,
        running: Sequence[RunningEngine],
        families: MetricFamilies,
        tracer: Tracer | None,
        lost: Future[AntiphonError],
        *,
        number: int = 0,
        is_alone: bool = False,
    ) -> None:
        """Begin to read the supervisor's messages, which bring the front ends.

        ``number`` is that of this process, in the order of the devices.
        ``is_alone`` marks a server of one process, whose only front end calls and drains the engines itself.
        """
        self._tracer, self._lost = tracer, lost
        self._engines = {each.name: each.engine for each in running}
        self._lines = lines_of(running, number)
        self._models: tuple[tuple[str, str], ...] = ()  # fingerprints that front ends compare with their own
        self._families = families
        self._pids: dict[int, int] = {}
        self.front_ends: FrontEndServer | None = None
        if not is_alone:
            self._models = tuple((each.name, fingerprint(each.checkpoint.files)) for each in running)
            loop = asyncio.get_running_loop()
            self.front_ends = FrontEndServer(self._engines, loop, on_dropped=self._dropped)
        self._leaving = asyncio.Event()
        self.peer = connect(self._hear, lost=lambda _: self.leave())

    def leave(self) -> None:
        """Make :meth:`run` return."""
        self._leaving.set()

    async def run(self) -> None:
        """Serve front ends until the supervisor ends this process."""
        self.peer.send(messages.Ready(tuple(self._lines), self._models))
        lost = asyncio.wrap_future(self._lost)
        lost.add_done_callback(lambda it: self.peer.send(messages.Lost(str(it.result()))))
        watching = [asyncio.ensure_future(it) for it in (self._watch_trace(), self._watch_front_ends())]
        await self._leaving.wait()
        for watch in watching:
            watch.cancel()
        if self.front_ends is not None:
            self.front_ends.stop()

    async def _watch_front_ends(self) -> None:
        """Report the engines' health to front ends, and drop those that read no messages."""
        while self.front_ends is not None:
            await asyncio.sleep(HEALTH_S)
            self.front_ends.watch_front_ends()

    async def _watch_trace(self) -> None:
        """Report to the supervisor when all ticks of a trace are recorded."""
        if self._tracer is not None:
            while self._tracer.is_open:  # noqa: ASYNC110 (it belongs to other threads)
                await asyncio.sleep(TRACE_POLL_S)
            self.peer.send(messages.Traced())

    def _hear(self, message: Message, descriptors: Sequence[int]) -> ControlReply:
        match message:
            case messages.Ping():
                is_stuck = any(engine.health().stuck_s for engine in self._engines.values())
                return messages.Pong(is_stuck=is_stuck)
            case messages.Question("trace"):
                return trace_of(self._tracer)
            case messages.Question():
                return messages.Body(self._answer(message.what))
            case messages.Leave():
                self.leave()
            case messages.NewFrontEnd() if self.front_ends is not None:
                self._pids[message.number - 1] = message.pid
                self.front_ends.add(message.number - 1, socket.socket(fileno=descriptors[0]))
            case messages.GoneFrontEnd() if self.front_ends is not None:
                self.front_ends.take_back(message.number - 1)
            case messages.Drain() if self.front_ends is not None:
                for engine in self._engines.values():
                    engine.drain(message.target)
        return None

    def _dropped(self, pool: int) -> None:
        """Handle a front end that reads no messages, or has ended."""
        self.peer.send(messages.Stuck(self._pids.get(pool, 0)))

    def _answer(self, what: str) -> bytes:
        if what == "metrics":
            return read_registry(self._families.registry)
        healths = {name: asdict(engine.health()) for name, engine in self._engines.items()}
        return json.dumps(healths).encode()


def report_loss(lost: Future[AntiphonError], error: AntiphonError) -> None:
    """Report the loss of a device. Only the first loss is reported. Any thread may call it."""
    with contextlib.suppress(InvalidStateError):
        lost.set_result(error)


def run_engines(control: socket.socket, begin: messages.Begin, _: Sequence[int]) -> None:
    """Run the engines until the supervisor has ended or ends this process.

    Raises:
        AntiphonError: one of the models cannot be served.
    """
    config, front_ends, _secret = pickle.loads(begin.task)
    assert isinstance(config, ServerConfig)
    is_one_of_several, config = len(config.devices) > 1, config.of_engine(begin.number)
    name = f"engine {config.device}" if is_one_of_several else "engine"
    set_up_logging(config.log_level, process=name)
    sys.setswitchinterval(config.switch_interval_ms / 1000.0)
    families, lost = MetricFamilies(CollectorRegistry()), Future[AntiphonError]()
    watch_engine_process(families.registry)
    tracer, progress = make_tracer(config), show_progress(sys.stderr.isatty())
    on_lost = partial(report_loss, lost)
    with running_engines(
        config, families, on_lost=on_lost, tracer=tracer, progress=progress, pools=front_ends
    ) as running:
        gc.collect()
        gc.freeze()

        async def serve() -> FrontEndServer | None:
            connect = partial(MessageSocket, control, messages.CONTROL)
            engines = Engines(connect, running, families, tracer, lost, number=begin.number)
            await engines.run()
            return engines.front_ends

        served = asyncio.run(serve())
    assert served is not None
    served.close()  # an engine thread that is still alive is in a step; the process ends


if __name__ == "__main__":
    sys.exit(run_child(sys.argv[1:], run_engines))
