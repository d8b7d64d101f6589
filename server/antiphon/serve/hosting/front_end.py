"""A front end: connections from the supervisor, and their conversations.

It runs in the process of a single-process server, or in its own, which the supervisor starts with ``python -m
antiphon.serve.hosting.front_end DESCRIPTOR PARENT``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import pickle
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry

from antiphon.audio.ffmpeg import load_av
from antiphon.config import ServerConfig
from antiphon.engine.trace import Tracer
from antiphon.errors import AntiphonError, ConfigError, DrainingError, SessionFailedError
from antiphon.ipc.engine_client import connect
from antiphon.ipc.engine_group import EngineGroup
from antiphon.ipc.message_socket import MessageSocket
from antiphon.log import Log, set_up_logging
from antiphon.metrics import MetricFamilies
from antiphon.models.checkpoint import Checkpoint, fingerprint
from antiphon.models.spec import PipelineKind
from antiphon.serve.access.callers import Access
from antiphon.serve.access.supervisor_client import SupervisorClient
from antiphon.serve.calls.call import Call
from antiphon.serve.hosting.app import FAULTS, build_app, close_calls, make_runner
from antiphon.serve.hosting.event_loop import run
from antiphon.serve.hosting.front_end_links import FrontEndLinks
from antiphon.serve.hosting.model_names import name_models
from antiphon.serve.hosting.ports import port_tls
from antiphon.serve.hosting.served import ServedModel, serve_model
from antiphon.serve.hosting.services import SERVICES
from antiphon.serve.hosting.tcp import TcpConnection, TcpServer
from antiphon.serve.operator.otel import make_tracer, trace_of
from antiphon.supervisor import messages
from antiphon.supervisor.answers import read_registry
from antiphon.supervisor.child import run_child
from antiphon.supervisor.connection_bounds import raise_open_file_limit
from antiphon.supervisor.messages import Connect, ControlReply, ControlSocket, Message

HEAD_S: Final = 1.0
"""Seconds for the first complete request of a connection, when others need its place."""

FILE_KINDS: Final = frozenset({PipelineKind.STT, PipelineKind.TTS})
"""Models whose requests read or write files of FFmpeg's formats."""

MAX_LINKS: Final = 256
"""Most connections that other front ends pass to this one; a further one resumes no call."""


Handling: TypeAlias = web.RequestHandler | TcpConnection
"""Serves one connection."""


class Connections:
    """The connections that the supervisor has passed on: which are busy, and which have closed.

    A connection is busy until its first request is answered, and during every request. Calls outside of HTTP
    requests also count as busy connections.
    """

    def __init__(
        self,
        peer: ControlSocket,
        server: web.Server,
        tcp: TcpServer,
        connect_timeout_s: float,
        calls_outside_requests: Callable[[], int] = lambda: 0,
    ) -> None:
        """Report to ``peer`` about the connections of both servers; TLS may take ``connect_timeout_s``.

        ``calls_outside_requests`` returns the number of calls outside HTTP requests.
        """
        self._peer, self._server, self._tcp = peer, server, tcp
        self._connect_timeout_s, self._calls_apart = connect_timeout_s, calls_outside_requests
        self._busy = 0  # as reported last
        self._received = 0
        self._numbers: dict[Handling, int] = {}
        self._addresses: dict[web.RequestHandler, str] = {}  # of connections that others have passed on
        self._beginning: set[Handling] = set()
        self._idle: set[web.RequestHandler] = set()
        self._unasked: dict[Handling, tuple[float, socket.socket]] = {}

    async def begin(self, number: int, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve a connection that was passed on."""
        handler = self._tcp.accept(connection) or self._server()
        self._received += 1
        self._numbers[handler] = number
        self._beginning.add(handler)
        loop = asyncio.get_running_loop()
        if not isinstance(handler, TcpConnection):
            self._unasked[handler] = loop.time(), connection
        self._report()
        try:
            limit_s = None if tls is None else self._connect_timeout_s
            await loop.connect_accepted_socket(
                lambda: handler, connection, ssl=tls, ssl_handshake_timeout=limit_s
            )
        except OSError:  # gone already, or a failed TLS handshake, which is counted elsewhere
            connection.close()
        finally:
            self._beginning.discard(handler)

    async def begin_link(self, address: str, link: socket.socket) -> None:
        """Serve a connection of a client with this address that another front end passes on."""
        if len(self._addresses) >= MAX_LINKS:
            link.close()
            return
        handler = self._server()
        self._addresses[handler] = address
        self._beginning.add(handler)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: handler, link)
        finally:
            self._beginning.discard(handler)

    def refuse(self, number: int) -> None:
        """Report a connection that arrived without its descriptor: this process had no free file
        descriptor."""
        self._received += 1
        self._report([number])

    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A middleware that tracks which connections have a request in progress."""
        if (address := self._addresses.get(request.protocol)) is not None:
            return await handler(request.clone(remote=address))
        self._unasked.pop(request.protocol, None)
        if request.protocol in self._idle:
            self._idle.discard(request.protocol)
            self._report()
        try:
            return await handler(request)
        finally:
            self._idle.add(request.protocol)
            self._report()

    def make_room(self, count: int) -> None:
        """Close up to ``count`` connections that have had no complete request for ``HEAD_S`` (on a TCP port:
        no request in progress), the longest idle first.
        """
        loop = asyncio.get_running_loop()
        idle: list[tuple[float, Handling]] = [(since_s, it) for it, (since_s, _) in self._unasked.items()]
        idle += [(it.idle_since_s, it) for it in self._tcp.connections if it.idle_since_s is not None]
        for since_s, handler in sorted(idle, key=lambda each: each[0])[:count]:
            if loop.time() - since_s < HEAD_S:
                break
            begun = self._unasked.pop(handler, None)
            if handler.transport is not None:
                handler.transport.abort()
            elif begun is not None:  # its TLS handshake has not begun
                with contextlib.suppress(OSError):
                    begun[1].shutdown(socket.SHUT_RDWR)
        loop.call_soon(self.look)

    def look(self) -> None:
        """Detect closed connections."""
        alive = {*self._server.connections, *self._tcp.connections, *self._beginning}
        gone = [handler for handler in self._numbers if handler not in alive]
        self._addresses = {handler: it for handler, it in self._addresses.items() if handler in alive}
        self._idle &= alive
        for handler in gone:
            self._unasked.pop(handler, None)
        if gone or self._count() != self._busy:
            self._report([self._numbers.pop(handler) for handler in gone])

    def _report(self, closed: Sequence[int] = ()) -> None:
        self._busy = self._count()
        self._peer.send(messages.Load(self._received, self._busy, tuple(closed)))

    def _count(self) -> int:
        return len(self._numbers) + len(self._addresses) - len(self._idle) + self._calls_apart()


def check_unchanged(name: str, checkpoint: Checkpoint, running: Mapping[str, str]) -> None:
    """Compare a model's files with the fingerprints of the ``running`` engine, by name.

    Raises:
        ConfigError: files were replaced since the engine started.
    """
    if fingerprint(checkpoint.files) != running.get(name):
        raise ConfigError(
            f"the files of the model {name} in {checkpoint.root} have changed since the engine started; "
            "restart the server to serve them, or put the old ones back"
        )


class FrontEnd:
    """The calls on one event loop, until the supervisor ends the front end."""

    def __init__(
        self,
        connect: Connect,
        config: ServerConfig,
        families: MetricFamilies,
        *,
        access: Access | None = None,
        tracer: Tracer | None = None,
        secret: bytes | None = None,
        number: int = 0,
    ) -> None:
        """Begin to read the supervisor's messages.

        In a single-process server ``access`` counts in this process, and ``tracer`` is the tracer of the
        engines. Otherwise ``secret`` signs ephemeral keys. With a ``number`` there are other front ends.

        Raises:
            AntiphonError: the configuration cannot be used.
        """
        self._config, self._families = config, families
        self._log = Log()
        self._leaving = asyncio.Event()
        self._is_cut = False
        self._early_drain: messages.Drain | None = None  # received before the application was built
        self._tasks: set[asyncio.Task[None]] = set()
        self._app: web.Application | None = None
        self.connections: Connections | None = None
        self._number = number
        self._own_tracer = None if tracer is not None else make_tracer(config, has_ticks=False)
        self._tracer = tracer or self._own_tracer
        self._tls = port_tls(config)
        self.peer = connect(self._hear, lost=lambda _: self._leaving.set())
        self._access = access or Access(config, SupervisorClient(self.peer.send, self.peer.ask), secret)

    async def run(self, served: Sequence[ServedModel]) -> None:
        """Serve these models until the supervisor ends the front end.

        Raises:
            AntiphonError: the application cannot be built.
        """
        if any(model.kind in FILE_KINDS for model in served):
            load_av()  # now, and not on the event loop during calls
        app = build_app(served, self._config, self._families, access=self._access, tracer=self._tracer)
        runner = make_runner(app, shutdown_timeout=2 * self._config.limits.close_timeout_s)
        asyncio.get_running_loop().set_exception_handler(app[FAULTS].handle)
        for context in self._tls.contexts:
            app[FAULTS].watch_tls(context)

        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            assert self.connections is not None
            return await self.connections.count(request, handler)

        app.middlewares.insert(0, count)
        await runner.setup()
        assert runner.server is not None
        self._app = app
        if self._early_drain is not None:
            self._begin(self._drain(app, self._early_drain))
        app[SERVICES].begin_drain = lambda *which: self.peer.send(messages.BeginDrain(*which))
        if self._number:
            app[SERVICES].links = FrontEndLinks(self._number, self.peer.send, self._config.limits)
        limit_s = self._config.limits.connect_timeout_s
        tcp = TcpServer(app[SERVICES], self._config.tcp_ports)
        peers = app[SERVICES].peers
        held = partial(len, () if peers is None else peers)
        self.connections = Connections(self.peer, runner.server, tcp, limit_s, held)
        # A full collection visits all objects: with torch loaded it takes 170 ms and makes two frames late.
        # Objects made before now are permanent anyway.
        gc.collect()
        gc.freeze()
        self.peer.send(messages.Ready())
        try:
            await self._leaving.wait()
        finally:
            await close_calls(app, DrainingError("the server is shutting down"))
            await tcp.close()
            await runner.cleanup()

    def _hear(self, message: Message, descriptors: Sequence[int]) -> ControlReply:
        match message:
            case messages.Ping():
                return self._pong()
            case messages.Connection():
                self._take(message.number, descriptors)
            case messages.Link(_, address) if descriptors and self.connections is not None:
                link = socket.socket(fileno=descriptors[0])
                self._begin(self.connections.begin_link(address, link))
            case messages.MakeRoom():
                if self.connections is not None:
                    self.connections.make_room(message.count)
            case messages.Question("trace"):
                return trace_of(self._own_tracer)
            case messages.Question():
                return messages.Body(read_registry(self._families.registry))
            case messages.Drain():
                if self._app is not None:
                    self._begin(self._drain(self._app, message))
                else:
                    self._early_drain = message
                    self.peer.send(messages.Drained())  # there are no calls
            case messages.CanaryPhase():
                self._access.client.note_phase(message.phase)
            case messages.Reread():
                self._reread()
            case messages.Cut():
                self._is_cut = True
                if self._app is not None:
                    self._app[SERVICES].changed.set()
            case messages.Leave():
                self._leaving.set()
        return None

    def _take(self, number: int, descriptors: Sequence[int]) -> None:
        assert self.connections is not None
        if not descriptors:
            error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            context = {
                "message": "a connection arrived without its socket",
                "exception": error,
                "socket": None,
            }
            asyncio.get_running_loop().call_exception_handler(context)
            self.connections.refuse(number)
            return
        connection = socket.socket(fileno=descriptors[0])
        self._begin(self.connections.begin(number, connection, self._tls.of(connection)))

    def _pong(self) -> messages.Pong:
        if self.connections is None or self._app is None:
            return messages.Pong()
        self.connections.look()
        return messages.Pong(self._app[SERVICES].lag.lag_s)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reread(self) -> None:
        """Read keys and the callers' certificate again; unusable files only cause a log line."""
        config = self._config
        self._access.reread_keys()
        try:
            self._access.reread_token()
        except ConfigError as error:
            self._log.error("token not read again", reason=str(error))
        try:
            self._tls.reread(config.tls_cert, config.tls_key)
        except ConfigError as error:
            self._log.error("certificate not read again", reason=str(error))
        else:
            files = {"keys": config.api_keys, "certificate": config.tls_cert}
            self._log.info("keys and certificates read again", **files)

    async def _drain(self, app: web.Application, how: messages.Drain) -> None:
        await drain(app, how.limit_s, is_cut=lambda: self._is_cut, log=self._log, target=how.target)
        self.peer.send(messages.Drained())


IN_NO_ROW: Final = "an agent's conversation has no row state, and is not handed over"


async def drain(
    app: web.Application, limit_s: float, *, is_cut: Callable[[], bool], log: Log, target: str = ""
) -> None:
    """Refuse new callers, and let calls continue until they have ended, the limit is over, or ``is_cut``
    returns true.

    Move resumable calls to the worker at ``target``. The remaining calls are closed; if no engine is left,
    with the error of an engine.
    """
    services = app[SERVICES]
    calls: set[Call] = services.calls
    engines = [model.engine for model in services.models if model.engine.health().alive]
    if engines:
        log.info("draining: a second signal ends the calls at once", calls=len(calls), limit_s=limit_s)
        for call in tuple(calls):
            if not (target and call.can_move):
                _announce(call, limit_s, log)
            if target and call.local is not None:
                log.info("call not handed over", session=call.participant.id, reason=IN_NO_ROW)
    for engine in engines:
        engine.drain(target)
        engine.on_change(services.changed.set)

    def alive() -> bool:
        return any(engine.health().alive for engine in engines)

    def has_calls() -> bool:
        """Whether any calls continue; a call that resumes here is briefly without a connection."""
        is_resuming = bool(target) and any(engine.health().active for engine in engines)
        return bool(calls or services.answers or is_resuming)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while has_calls() and not is_cut() and alive():
                services.changed.clear()
                await services.changed.wait()
    had = "a second signal ends the calls early" if is_cut() else f"calls had {limit_s:g} s to finish"
    error: AntiphonError = DrainingError(f"the server is shutting down; {had}")
    cut = len(calls)
    if not alive():
        error = SessionFailedError(services.models.first.engine.health().detail)
    await close_calls(app, error)
    log.info("drained", cut=cut)


def _announce(call: Call, limit_s: float, log: Log) -> None:
    try:
        call.announce_draining(limit_s)
    except Exception as error:  # a boundary: the server must stop despite any error of one call
        log.error("notifying a call of draining failed", exc_info=error)


def run_front_end(control: socket.socket, begin: messages.Begin, descriptors: Sequence[int]) -> None:
    """Serve conversations until the supervisor has ended or ends this front end.

    Raises:
        AntiphonError: the configuration, or a model's files, cannot be used.
    """
    config, front_ends, secret = pickle.loads(begin.task)
    assert isinstance(config, ServerConfig)
    set_up_logging(config.log_level, process=f"front-end-{begin.number}")
    sys.setswitchinterval(config.switch_interval_ms / 1000.0)
    raise_open_file_limit()

    async def serve() -> None:
        families = MetricFamilies(CollectorRegistry())
        to_supervisor = partial(MessageSocket, control, messages.CONTROL)
        number = begin.number if front_ends > 1 else 0
        front_end = FrontEnd(to_supervisor, config, families, secret=secret, number=number)
        engines = [await connect(socket.socket(fileno=link)) for link in descriptors]
        named, running = name_models(config.served), dict(begin.models)
        for _, name, checkpoint in named:
            check_unchanged(name, checkpoint, running)
        groups = {name: EngineGroup([ports[name] for ports in engines]) for _, name, _ in named}
        await front_end.run([serve_model(*each, groups[each[1]], families) for each in named])

    run(serve())


if __name__ == "__main__":
    sys.exit(run_child(sys.argv[1:], run_front_end))
