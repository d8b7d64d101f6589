"""What a WebSocket costs: CPU of the server per Opus-sized message in and out, for each way to read frames.

    python -m lab.bench.sockets [--connections 64] [--seconds 0.5] [--rounds 30]

Each candidate is an aiohttp server whose one route sends every message back. ``aiohttp`` reads with aiohttp's
own WebSocket, ``websockets`` with that library's sans-I/O protocol, ``picows`` with its protocol on the
connection, ``own`` with :mod:`antiphon.serve.transport.incoming`; each on asyncio's event loop and on uvloop.
They run by turns. The clients are another process; CPU is read from the server's
``/proc/PID/task/*/schedstat``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from antiphon.serve.transport.frames import BINARY, CLOSE, frame
from antiphon.serve.transport.incoming import Incoming

PAYLOAD_BYTES = 120
"""80 ms of Opus at 12 kbit/s, as a call's messages are."""

PERIOD_S = 0.08
MASK = b"\x12\x34\x56\x78"
Echo = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Inbox:
    """Messages that wait for a coroutine, which is what a conversation reads with."""

    def __init__(self) -> None:
        self._waiting: deque[bytes | None] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, message: bytes | None) -> None:
        self._waiting.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> bytes | None:
        if not self._waiting:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._waiting.popleft()


async def _echo_all(inbox: Inbox, transport: asyncio.Transport) -> None:
    while (message := await inbox.get()) is not None:
        transport.write(frame(message))
    transport.close()


def _accepting(request: web.Request) -> web.StreamResponse:
    """The answer to an upgrade, without its checks."""
    import base64
    import hashlib

    key = request.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept}
    return web.StreamResponse(status=101, headers=headers)


async def _handed_over(request: web.Request, parser: Any, inbox: Inbox) -> web.StreamResponse:
    """Upgrade, and give what comes in to a parser from then on."""
    response = _accepting(request)
    await response.prepare(request)
    transport: Any = request.transport
    request.protocol.set_parser(parser)
    request.protocol.keep_alive(False)
    await _echo_all(inbox, transport)
    return response


async def echo_aiohttp(request: web.Request) -> web.StreamResponse:
    ws = web.WebSocketResponse(autoping=False, autoclose=False, compress=False)
    await ws.prepare(request)
    transport: Any = request.transport
    while (message := await ws.receive()).type is web.WSMsgType.BINARY:
        transport.write(frame(message.data))
    transport.close()
    return ws


async def echo_websockets(request: web.Request) -> web.StreamResponse:
    from websockets.frames import Opcode
    from websockets.protocol import OPEN, Protocol, Side

    inbox, protocol = Inbox(), Protocol(Side.SERVER, state=OPEN)
    transport: Any = request.transport

    class Parser:
        def feed_data(self, data: bytes) -> tuple[bool, bytes]:
            protocol.receive_data(data)
            for event in protocol.events_received():
                is_data = getattr(event, "opcode", None) is Opcode.BINARY
                inbox.put(bytes(event.data) if is_data else None)  # type: ignore[union-attr]
            for answer in protocol.data_to_send():
                transport.write(answer)
            return False, b""

        def feed_eof(self) -> None:
            inbox.put(None)

    return await _handed_over(request, Parser(), inbox)


async def echo_own(request: web.Request) -> web.StreamResponse:
    inbox, incoming = Inbox(), Incoming(1 << 20)

    class Parser:
        def feed_data(self, data: bytes) -> tuple[bool, bytes]:
            incoming.feed(data)
            while (message := incoming.next()) is not None:
                inbox.put(message[1] if message[0] == BINARY else None)  # type: ignore[arg-type]
            return False, b""

        def feed_eof(self) -> None:
            inbox.put(None)

    return await _handed_over(request, Parser(), inbox)


async def echo_picows(request: web.Request) -> web.StreamResponse:
    import picows
    from picows import picows as compiled

    inbox, silent = Inbox(), logging.Logger("picows", logging.CRITICAL)

    class Listener(picows.WSListener):
        def on_ws_frame(self, _: Any, event: Any) -> None:
            inbox.put(None if event.msg_type == CLOSE else event.get_payload_as_bytes())

        def on_ws_disconnected(self, _: Any) -> None:
            inbox.put(None)

    ping = picows.WSAutoPingStrategy.PING_WHEN_IDLE
    protocol: Any = vars(compiled)["WSProtocol"](
        None,
        None,
        False,
        lambda _: Listener(),
        silent,
        True,
        None,
        False,
        10,
        10,
        ping,
        False,
        1 << 20,
        None,
        65536,
    )
    transport: Any = request.transport
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    key = request.headers["Sec-WebSocket-Key"]
    head = f"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Key: {key}\r\n"
    head += "Sec-WebSocket-Version: 13\r\n\r\n"
    protocol.get_buffer(-1)[: len(head)] = head.encode()
    protocol.buffer_updated(len(head))
    while (message := await inbox.get()) is not None:
        protocol.transport.send(BINARY, message)
    transport.close()
    request.protocol.connection_lost(None)
    return web.Response()


ECHOES: dict[str, Echo] = {
    "aiohttp": echo_aiohttp,
    "websockets": echo_websockets,
    "picows": echo_picows,
    "own": echo_own,
}
LOOPS = ("asyncio", "uvloop")


async def _serve(echo: Echo) -> None:
    app = web.Application()
    app.router.add_get("/", echo)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def serve(candidate: str, loop: str) -> None:
    """Be the server, until killed."""
    # asyncio asks for 256 KiB at each read. Until a process has freed a larger block, glibc maps and unmaps
    # these pages each time; a server that has loaded a model has.
    bytes(1 << 22)
    factory = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(ECHOES[candidate]))


class Clients:
    """Connections that each send a message every period, evenly spread, and read what comes back."""

    def __init__(self, port: int, count: int) -> None:
        payload = os.urandom(PAYLOAD_BYTES)
        masked = bytes(byte ^ MASK[index % 4] for index, byte in enumerate(payload))
        self._message = bytes((0x80 | BINARY, 0x80 | PAYLOAD_BYTES)) + MASK + masked
        self._answer_bytes = len(frame(payload))
        self._selector = selectors.DefaultSelector()
        self.sockets = [self._connect(port) for _ in range(count)]
        self.received_bytes = 0

    def _connect(self, port: int) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        connection.sendall(
            head + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += connection.recv(1)
        assert b" 101 " in answer, answer
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)
        return connection

    def talk(self, seconds: float) -> int:
        """Send at the times that are due; the number of messages that were sent and came back."""
        step_s = PERIOD_S / len(self.sockets)
        total = round(seconds / step_s)
        start_s, sent, received = time.monotonic(), 0, 0
        while received < total * self._answer_bytes:
            now_s = time.monotonic()
            while sent < total and start_s + sent * step_s <= now_s:
                self.sockets[sent % len(self.sockets)].send(self._message)
                sent += 1
            for key, _ in self._selector.select(max(0.0, min(0.05, start_s + sent * step_s - now_s))):
                received += len(key.fileobj.recv(65536))  # type: ignore[union-attr]
        return sent


def cpu_s(pid: int) -> float:
    """Seconds a process has computed, all threads together."""
    stats = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(stat.read_text().split()[0]) for stat in stats) / 1e9


@dataclass(slots=True)
class Candidate:
    """A running server, its clients, and the microseconds of CPU per message of each turn."""

    name: str
    process: subprocess.Popen[str]
    clients: Clients
    values: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, echo: str, loop: str, connections: int) -> Candidate:
        command = [sys.executable, "-m", "lab.bench.sockets", "--serve", echo, "--loop", loop]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        clients = Clients(int(process.stdout.readline()), connections)
        clients.talk(0.5)
        return cls(f"{echo} {loop}", process, clients)

    def turn(self, seconds: float) -> None:
        before_s = cpu_s(self.process.pid)
        messages = self.clients.talk(seconds)
        self.values.append(round((cpu_s(self.process.pid) - before_s) / messages * 1e6, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--serve", choices=ECHOES, help=argparse.SUPPRESS)
    parser.add_argument("--loop", choices=LOOPS, help=argparse.SUPPRESS)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.loop)
        return
    candidates: list[Candidate] = []
    try:
        for loop in LOOPS:
            candidates += [Candidate.start(echo, loop, options.connections) for echo in ECHOES]
        for _ in range(options.rounds):
            for candidate in candidates:
                candidate.turn(options.seconds)
    finally:
        for candidate in candidates:
            candidate.process.kill()
            candidate.process.wait()
    for candidate in candidates:
        quartiles = [round(value, 1) for value in statistics.quantiles(candidate.values, n=4)]
        print(json.dumps({"candidate": candidate.name, "quartiles_us": quartiles, "us": candidate.values}))


if __name__ == "__main__":
    main()
