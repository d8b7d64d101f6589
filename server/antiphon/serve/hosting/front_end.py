"""A front-end process: connections that the supervisor passes on, and their conversations.

``python -m antiphon.serve.hosting.front_end DESCRIPTOR PARENT``: the supervisor starts it.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import pickle
import socket
import ssl
import sys
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry

from antiphon.config import ServerConfig
from antiphon.errors import AntiphonError, ConfigError, SessionFailedError
from antiphon.ipc.engine_client import connect
from antiphon.ipc.message_socket import MessageSocket
from antiphon.log import Log, set_up_logging
from antiphon.metrics import MetricFamilies
from antiphon.models.checkpoint import Checkpoint, fingerprint
from antiphon.serve.access.callers import Access
from antiphon.serve.access.supervisor_client import SupervisorClient
from antiphon.serve.hosting.app import FAULTS, build_app, make_runner
from antiphon.serve.hosting.lifecycle import drain, reread_files
from antiphon.serve.hosting.ports import port_tls
from antiphon.serve.hosting.served import name_models, serve_model
from antiphon.serve.hosting.services import SERVICES
from antiphon.serve.hosting.tracing import make_tracer, trace_of
from antiphon.serve.transport.loop import run
from antiphon.serve.transport.open_files import raise_open_file_limit
from antiphon.supervisor import messages
from antiphon.supervisor.answers import read_registry
from antiphon.supervisor.child import control_socket, receive_begin, say_failed
from antiphon.supervisor.messages import ControlReply, ControlSocket, Message


class Connections:
    """Connections that were passed on: which are at work, and which have closed, for the supervisor.

    One is at work until its first request has been answered, and while a request is.
    """

    def __init__(self, peer: ControlSocket, server: web.Server, connect_timeout_s: float) -> None:
        """Report to ``peer`` on the connections of ``server``, whose TLS may take ``connect_timeout_s``."""
        self._peer, self._server, self._connect_timeout_s = peer, server, connect_timeout_s
        self._received = 0
        self._numbers: dict[web.RequestHandler, int] = {}
        self._beginning: set[web.RequestHandler] = set()
        self._idle: set[web.RequestHandler] = set()

    async def begin(self, number: int, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve a connection that was passed on."""
        handler = self._server()
        self._received += 1
        self._numbers[handler] = number
        self._beginning.add(handler)
        self._report()
        try:
            loop = asyncio.get_running_loop()
            limit_s = None if tls is None else self._connect_timeout_s
            await loop.connect_accepted_socket(
                lambda: handler, connection, ssl=tls, ssl_handshake_timeout=limit_s
            )
        except OSError:  # gone already, or no TLS, which is counted elsewhere
            connection.close()
        finally:
            self._beginning.discard(handler)

    def refuse(self, number: int) -> None:
        """A connection came without its descriptor: this process had no open file left for it."""
        self._received += 1
        self._report([number])

    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A middleware that sees which connections have a request being answered."""
        if request.protocol in self._idle:
            self._idle.discard(request.protocol)
            self._report()
        try:
            return await handler(request)
        finally:
            self._idle.add(request.protocol)
            self._report()

    def look(self) -> None:
        """Find those that have closed."""
        alive = {*self._server.connections, *self._beginning}
        gone = [handler for handler in self._numbers if handler not in alive]
        self._idle &= alive
        if gone:
            self._report([self._numbers.pop(handler) for handler in gone])

    def _report(self, closed: Sequence[int] = ()) -> None:
        busy = len(self._numbers) - len(self._idle)
        self._peer.send(messages.Load(self._received, busy, tuple(closed)))


def check_unchanged(name: str, checkpoint: Checkpoint, running: Mapping[str, str]) -> None:
    """Compare a model's files with the fingerprints of what the engine is ``running``, by name.

    Raises:
        ConfigError: they were replaced since the engine has started.
    """
    if fingerprint(checkpoint.files) != running.get(name):
        raise ConfigError(
            f"the files of the model {name} in {checkpoint.root} are no longer those that the engine runs; "
            "restart the server to serve them, or put the old ones back"
        )


class FrontEndProcess:
    """One process of conversations; ``begin`` is what the supervisor said first."""

    def __init__(
        self,
        control: socket.socket,
        begin: messages.Begin,
        config: ServerConfig,
        link: int,
        secret: bytes | None = None,
    ) -> None:
        """Made on the event loop it will run on; ``secret`` signs ephemeral keys."""
        self._config, self._number = config, begin.number
        self._models = dict(begin.models)
        self._families = MetricFamilies(CollectorRegistry())
        self._log = Log()
        self._leaving = asyncio.Event()
        self._is_cut = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._app: web.Application | None = None
        self._connections: Connections | None = None
        self._link = link
        self._tracer = make_tracer(config, has_ticks=False)
        self._tls = port_tls(config)
        self.peer = MessageSocket(control, messages.CONTROL, self._hear, lost=lambda _: self._leaving.set())
        self._client = SupervisorClient(self.peer.send, self.peer.ask)
        self._access = Access(config, self._client, secret)

    async def run(self) -> None:
        """Serve until the supervisor says otherwise.

        Raises:
            AntiphonError: the process cannot begin.
        """
        engines = await connect(socket.socket(fileno=self._link))
        named = name_models(self._config.served)
        for _, name, checkpoint in named:
            check_unchanged(name, checkpoint, self._models)
        served = [
            serve_model(entry, name, checkpoint, engines[name], self._families)
            for entry, name, checkpoint in named
        ]
        self._app = app = build_app(
            served,
            self._config,
            self._families,
            access=self._access,
            tracer=self._tracer,
        )
        runner = make_runner(app, shutdown_timeout=2 * self._config.limits.close_timeout_s)
        await self._serve(app, runner)

    async def _serve(self, app: web.Application, runner: web.AppRunner) -> None:
        asyncio.get_running_loop().set_exception_handler(app[FAULTS].handle)
        for context in self._tls.contexts:
            app[FAULTS].watch_tls(context)
        counting: list[Connections] = []

        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await counting[0].count(request, handler)

        app.middlewares.insert(0, count)
        await runner.setup()
        assert runner.server is not None
        app[SERVICES].begin_drain = lambda target: self.peer.send(messages.BeginDrain(target))
        limit_s = self._config.limits.connect_timeout_s
        self._connections = Connections(self.peer, runner.server, limit_s)
        counting.append(self._connections)
        gc.collect()
        gc.freeze()
        self.peer.send(messages.Ready())
        try:
            await self._leaving.wait()
        finally:
            await runner.cleanup()

    def _hear(self, message: Message, descriptors: Sequence[int]) -> ControlReply:
        match message:
            case messages.Ping():
                return self._pong()
            case messages.Connection():
                self._take(message.number, descriptors)
            case messages.Question():
                return messages.Body(self._answer(message.what))
            case messages.Drain():
                self._begin(self._drain(message.limit_s, message.target))
            case messages.CanaryPhase():
                self._client.hear_phase(message.phase)
            case messages.Reread():
                reread_files(self._config, self._access, self._tls, self._log)
            case messages.Cut():
                self._is_cut = True
                if self._app is not None:
                    self._app[SERVICES].changed.set()
            case messages.Leave():
                self._leaving.set()
        return None

    def _take(self, number: int, descriptors: Sequence[int]) -> None:
        assert self._connections is not None
        if not descriptors:
            error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            context = {"message": "a connection came without its socket", "exception": error, "socket": None}
            asyncio.get_running_loop().call_exception_handler(context)
            self._connections.refuse(number)
            return
        connection = socket.socket(fileno=descriptors[0])
        self._begin(self._connections.begin(number, connection, self._tls.of(connection)))

    def _answer(self, what: str) -> bytes:
        if what == "trace":
            return trace_of(self._tracer)
        return read_registry(self._families.registry)

    def _pong(self) -> messages.Pong:
        if self._connections is None or self._app is None:
            return messages.Pong()
        self._connections.look()
        return messages.Pong(self._app[SERVICES].lag.lag_s)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, limit_s: float, target: str) -> None:
        if self._app is not None:
            gone = SessionFailedError("the engine's process is gone")
            await drain(
                self._app,
                limit_s,
                is_cut=lambda: self._is_cut,
                lost=lambda: gone,
                log=self._log,
                target=target,
            )
        self.peer.send(messages.Drained())


async def _run(
    control: socket.socket, begin: messages.Begin, config: ServerConfig, link: int, secret: bytes
) -> None:
    await FrontEndProcess(control, begin, config, link, secret).run()


def main(argv: Sequence[str]) -> int:
    """Serve conversations until the supervisor ends."""
    control = control_socket(argv)
    begin, descriptors = receive_begin(control)
    config, _, secret = pickle.loads(begin.task)
    assert isinstance(config, ServerConfig)
    set_up_logging(config.log_level, process=f"front-end-{begin.number}")
    sys.setswitchinterval(config.switch_interval_ms / 1000.0)
    raise_open_file_limit()
    try:
        run(_run(control, begin, config, descriptors[0], secret))
    except AntiphonError as error:
        say_failed(control, error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
