"""Faults of connections by untrusted clients: counted, without errors in the log."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import ssl
import struct
import time

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from antiphon.log import LINE_PERIOD_S, Log
from antiphon.metrics import MetricFamilies
from antiphon.serve.hosting.ports import tls_context
from antiphon.serve.transport.connection_faults import ConnectionFaults
from antiphon.supervisor.connection_bounds import MAX_OPEN_FILES
from tests.serve.encrypted import TLS, TLS_GOODBYE
from tests.serve.harness import PATIENCE_S, serving
from tests.serve.hostile_requests import UPGRADE
from tests.serve.neighbours import assert_no_fault
from tests.serve.process import ServerProcess, serve_process

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

CERTIFICATE = ("--tls-cert", str(TLS / "test-cert.pem"), "--tls-key", str(TLS / "test-key.pem"))
RESETS = 40
"""Some meet the server in each of its steps: before, a third and more of them left an error."""


def upgrade(query: str = "") -> bytes:
    lines = [f"GET /api/chat?{query} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {value}" for name, value in UPGRADE.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def ask_and_reset(port: int, data: bytes, tls: ssl.SSLContext | None) -> None:
    with socket.create_connection(("127.0.0.1", port)) as plain:
        connection = plain if tls is None else tls.wrap_socket(plain)
        connection.sendall(data)
        reset(connection)


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def counted(text: str, name: str) -> float:
    (value,) = re.findall(rf"^antiphon_{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(value)


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("query", ["", "ext=1", "ext=1&model=none"])
async def test_a_reset_during_the_upgrade_is_no_error(
    query: str, is_tls: bool, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = tls_context(CERTIFICATE[1], CERTIFICATE[3]) if is_tls else None
    async with serving(slots=2, tls=theirs) as server:
        for _ in range(RESETS):
            ours = trusting() if is_tls else None
            await asyncio.to_thread(ask_and_reset, server.port, upgrade(query), ours)
        await server.is_empty()
    assert_no_fault(caplog)


async def test_a_peer_that_leaves_in_the_handshake_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prepare = web.StreamResponse.prepare

    async def too_late(response: web.StreamResponse, request: web.BaseRequest) -> object:
        if response.status == 101:
            assert request.transport is not None
            request.transport.abort()
        return await prepare(response, request)

    monkeypatch.setattr(web.StreamResponse, "prepare", too_late)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(upgrade())
        assert await ended(reader) == b""
        writer.close()
        await server.is_empty()
        text = (await server.get("/metrics"))[1]
    assert counted(text, 'failed_connections_total{kind="reset"}') == 1
    assert_no_fault(caplog)


@pytest.mark.parametrize("is_task", [True, False])
async def test_a_fault_of_a_connection_that_the_server_opened_keeps_its_traceback(
    is_task: bool, caplog: pytest.LogCaptureFixture
) -> None:
    faults = ConnectionFaults(MetricFamilies(CollectorRegistry()), Log(), time.monotonic)
    context: dict[str, object] = {"message": "ours", "exception": ConnectionResetError("by the hub")}
    if not is_task:
        context["protocol"] = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    faults.handle(asyncio.get_running_loop(), context)
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("ERROR", "asyncio")
    assert record.exc_info is not None
    assert "by the hub" in caplog.text


def test_a_refused_connection_is_not_a_peers_reset() -> None:
    faults = ConnectionFaults(MetricFamilies(CollectorRegistry()), Log(), time.monotonic)
    assert faults.take(ConnectionResetError())
    assert not faults.take(ConnectionRefusedError())


async def ended(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read(-1)
        except ConnectionResetError:
            return b""


async def many(count: int, port: int, data: bytes) -> None:
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writer.write_eof()
        await ended(reader)
        writer.close()


@TLS_GOODBYE
@pytest.mark.parametrize(
    ("options", "data", "kind"),
    [
        ((), b"GET / HTTP/9.x\r\n\r\n", "malformed"),
        ((), b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: secret\r\n\r\n", "malformed"),
        (CERTIFICATE, b"GET / HTTP/1.0\r\n\r\n", "tls"),
    ],
)
async def test_what_is_no_http_or_no_tls_is_counted_and_seldom_logged(
    options: tuple[str, ...], data: bytes, kind: str
) -> None:
    start_s = time.monotonic()
    async with serve_process("--log-level", "debug", *options) as server:
        await many(50, port_of(server), data)
        async with server.http.get(f"{server.url}/metrics", ssl=False) as response:
            assert counted(await response.text(), f'failed_connections_total{{kind="{kind}"}}') == 50
        log = await ended_log(server)
    lines = [line for line in log.splitlines() if "connection failed" in line]
    assert 1 <= len(lines) <= lines_since(start_s)
    assert all(f'level=info event="connection failed" kind={kind} error=' in line for line in lines)
    assert "level=error" not in log
    assert "secret" not in log


def lines_since(start_s: float) -> float:
    """The most lines of one kind since then: one at once, and one in a while."""
    return 1 + (time.monotonic() - start_s) / LINE_PERIOD_S


def port_of(server: ServerProcess) -> int:
    return int(server.url.rsplit(":", 1)[1])


async def ended_log(server: ServerProcess) -> str:
    server.signal(signal.SIGTERM)
    await server.exit_code()
    return await server.log()


async def test_without_open_files_the_log_stays_short_and_the_server_comes_back() -> None:
    async with serve_process(open_files=(64, 64)) as server:
        assert await server.status("/healthz") == 200  # this connection is kept

        async def metrics() -> str:
            async with server.http.get(f"{server.url}/metrics") as response:
                return await response.text()

        start_s = time.monotonic()
        crowd = [socket.socket() for _ in range(100)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port_of(server)))
        async with asyncio.timeout(PATIENCE_S):
            # The server is another process.
            while (shortages := counted(await metrics(), "resource_shortages_total")) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        # One a second, where asyncio alone has a hundred in the first.
        assert shortages <= 2 + time.monotonic() - start_s
        for one in crowd:
            one.close()
        assert await answers(server)
        log = await ended_log(server)
    assert 'level=warning event="system resources have run out" error=EMFILE open_file_limit=64' in log
    assert 1 <= log.count("system resources have run out") <= lines_since(start_s)
    assert "level=error" not in log


async def answers(server: ServerProcess) -> bool:
    """Whether a new connection is accepted and answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
    writer.write(b"GET /healthz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
    status = await ended(reader)
    writer.close()
    return b" 200 " in status


async def test_the_soft_limit_of_open_files_is_raised() -> None:
    async with serve_process(open_files=(64, 4096)) as server:
        async with server.http.get(f"{server.url}/metrics") as response:
            text = await response.text()
        assert f"process_max_fds {min(4096, MAX_OPEN_FILES):.1f}" in text


async def test_a_subprotocol_that_is_no_token_is_neither_selected_nor_quoted() -> None:
    async with serve_process() as server:
        offer = {"Sec-WebSocket-Protocol": "secret words"}
        async with server.http.ws_connect(f"{server.url}/api/chat", headers=offer) as ws:
            assert ws.protocol is None
        log = await ended_log(server)
    assert "session opened" in log
    assert "secret" not in log
