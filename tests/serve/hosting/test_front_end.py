"""The front end's side of its control socket."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from antiphon.config import ServerConfig
from antiphon.errors import ConfigError
from antiphon.ipc.message_socket import MessageSocket, local_pair
from antiphon.metrics import MetricFamilies
from antiphon.models.checkpoint import fingerprint
from antiphon.models.spec import PipelineKind
from antiphon.serve.hosting import front_end as front_end_module
from antiphon.serve.hosting import one_process
from antiphon.serve.hosting.engines import running_engines
from antiphon.serve.hosting.front_end import Connections, FrontEnd, check_unchanged
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.hosting.tcp import TcpServer
from antiphon.supervisor import messages
from antiphon.supervisor.messages import CONTROL, ControlReply, ControlSocket, Message
from tests.support.calm import calm
from tests.support.null_models import CODEC, null_checkpoint

NO_TCP = TcpServer(cast("Services", None), ())


def test_a_model_that_was_replaced_is_refused_in_words(tmp_path: Path) -> None:
    (path := tmp_path / "tokenizer.model").write_bytes(b"one")
    checkpoint = replace(null_checkpoint(CODEC), root=tmp_path, files={"tokenizer": path})
    running = {"echo": fingerprint(checkpoint.files)}
    check_unchanged("echo", checkpoint, running)
    path.write_bytes(b"two")
    with pytest.raises(
        ConfigError, match=f"of the model echo in {tmp_path} have changed since the engine started"
    ):
        check_unchanged("echo", checkpoint, running)
    with pytest.raises(ConfigError, match="of the model other"):
        check_unchanged("other", checkpoint, running)


async def test_links_are_bounded_and_bring_the_address_of_their_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=request.remote)

    monkeypatch.setattr("antiphon.serve.hosting.front_end.MAX_LINKS", 2)
    reported: list[Message] = []
    peer = cast("ControlSocket", SimpleNamespace(send=reported.append))
    server = web.Server(lambda request: connections.count(request, answer))  # type: ignore[arg-type]
    connections = Connections(peer, server, NO_TCP, 15.0)
    sides = []
    for address in ("192.0.2.1", "2001:db8::1", "192.0.2.3"):
        ours, theirs = socket.socketpair()
        sides.append(await asyncio.open_unix_connection(sock=ours))
        await connections.begin_link(address, theirs)
    connections.look()
    assert reported[-1] == messages.Load(0, 2)
    answered: list[bytes] = []
    for reader, writer in sides:
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        answered.append((await reader.read()).rpartition(b"\r\n")[2])
        writer.close()
    assert answered == [b"192.0.2.1", b"2001:db8::1", b""]
    connections.look()
    assert reported[-1] == messages.Load(0, 0)
    await server.shutdown()


async def test_a_connection_for_which_no_open_file_is_left_is_reported_as_closed() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one, other = socket.socketpair()
    heard: asyncio.Queue[Message] = asyncio.Queue()

    def hear(message: Message, descriptors: Sequence[int]) -> ControlReply:
        heard.put_nowait(message)
        return None

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response()

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    supervisor = MessageSocket(ours, CONTROL, hear, lost=lambda _: None)
    families = MetricFamilies(CollectorRegistry())
    front_end = FrontEnd(partial(MessageSocket, theirs, CONTROL), ServerConfig(), families)
    front_end.connections = Connections(front_end.peer, web.Server(answer), NO_TCP, 15.0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    supervisor.send(messages.Connection(7), [one.fileno()])
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        async with asyncio.timeout(120.0):
            assert await heard.get() == messages.Load(1, 0, (7,))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [context["exception"].errno for context in reported] == [errno.EMFILE]
    supervisor.close()
    assert isinstance(front_end.peer, MessageSocket)
    front_end.peer.close()
    one.close()
    other.close()


async def test_calls_that_are_in_no_request_count_as_busy_connections() -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response()

    sent: list[Message] = []
    peer, calls = cast("ControlSocket", SimpleNamespace(send=sent.append)), [1, 2]
    connections = Connections(peer, web.Server(answer), NO_TCP, 15.0, lambda: len(calls))
    connections.look()
    connections.look()
    calls.clear()
    connections.look()
    assert sent == [messages.Load(0, 2, ()), messages.Load(0, 0, ())]


async def test_a_drain_that_comes_before_the_application_is_built_holds_for_it() -> None:
    config = ServerConfig(model=("echo",), backend="null", engine=calm(slots=1))
    families, lost = MetricFamilies(CollectorRegistry()), list[object]()
    heard: asyncio.Queue[Message] = asyncio.Queue()
    end, supervisor = local_pair()
    supervisor.connect(lambda message, _: heard.put_nowait(message))
    front_end = FrontEnd(end.connect, config, families)
    supervisor.send(messages.Drain(60.0, ""))
    engines = running_engines(config, families, on_lost=lost.append, tracer=None, progress=lambda *_: None)
    with engines as running:
        async with asyncio.timeout(120.0):
            assert await heard.get() == messages.Drained()
            served = one_process.serve_here(running, families, asyncio.get_running_loop())
            serving = asyncio.create_task(front_end.run(served))
            while await heard.get() != messages.Drained():
                pass
            assert running[0].engine.health().draining
            supervisor.send(messages.Leave())
            await serving


@pytest.mark.parametrize(
    ("kind", "loads"),
    [
        (PipelineKind.STT, True),
        (PipelineKind.TTS, True),
        (PipelineKind.DUPLEX, False),
        (PipelineKind.CODEC, False),
    ],
)
async def test_ffmpeg_is_imported_before_a_model_of_files_is_served_and_for_no_other(
    kind: PipelineKind, loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(front_end_module, "load_av", lambda: order.append("ffmpeg"))

    def stop(*_: object, **__: object) -> None:
        order.append("application")
        raise ConfigError("the test ends here")

    monkeypatch.setattr(front_end_module, "build_app", stop)
    end, supervisor = local_pair()
    supervisor.connect(lambda *_: None)
    config = ServerConfig(model=("echo",), backend="null")
    front_end = FrontEnd(end.connect, config, MetricFamilies(CollectorRegistry()))
    with pytest.raises(ConfigError, match="the test ends here"):
        await front_end.run([cast("ServedModel", SimpleNamespace(kind=kind))])
    assert order == ["ffmpeg"] * loads + ["application"]


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_front_end_that_breaks_ends_a_server_of_one_process(
    is_ready: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(self: FrontEnd, _served: object) -> None:
        if is_ready:
            self.peer.send(messages.Ready())
        raise RuntimeError("a bug")

    monkeypatch.setattr(FrontEnd, "run", run)
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    config = ServerConfig(model=("echo",), backend="null", engine=calm(slots=1), port=0, front_ends=0)
    if not is_ready:
        with pytest.raises(ConfigError, match=r"^the front-end task ended with 1 before it was ready$"):
            one_process.serve(config)
        return
    assert one_process.serve(config) == 70
    (record,) = (it for it in caplog.records if it.message == "server gives up")
    assert record.fields == {"reason": "the front-end ended with 1"}  # type: ignore[attr-defined]
