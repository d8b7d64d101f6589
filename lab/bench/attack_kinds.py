"""Attacks from one address against a server; each returns as text what it still holds at its end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import aiohttp
import numpy as np

from antiphon.protocol import kyutai, kyutai_tts, moshi
from antiphon.protocol.event_text import MAX_EVENT_CHARS
from antiphon.supervisor.connection_bounds import raise_open_file_limit
from tests.support.worst_inputs import json_texts

PIECE_S = 0.5
"""Seconds between the pieces of a trickle."""


@dataclass
class Target:
    """A server to attack, and the length of the attack in seconds."""

    host: str
    port: int
    seconds: float
    http: aiohttp.ClientSession

    def url(self, path: str, scheme: str = "ws") -> str:
        """Return the URL of a path on the server."""
        return f"{scheme}://{self.host}:{self.port}{path}"

    @property
    def end_s(self) -> float:
        """The end time of an attack that starts now."""
        return asyncio.get_running_loop().time() + self.seconds


Attack: TypeAlias = Callable[[Target], Awaitable[str]]
Socket: TypeAlias = aiohttp.ClientWebSocketResponse

SESSIONS = 8

HALF_OPEN = 10_000
SPARE_FILES = 256
"""Open files that are not the attack's connections; the server is another process."""


async def trickle(target: Target, path: str, begin: list[Any], piece: Any) -> str:
    """Open sessions that send ``begin`` and then occasionally ``piece``, and answer pings; returns how many
    stay open."""

    async def say(ws: Socket, message: Any) -> None:
        await (ws.send_bytes(message) if isinstance(message, bytes) else ws.send_str(json.dumps(message)))

    async def one() -> bool:
        end_s, loop = target.end_s, asyncio.get_running_loop()
        try:
            async with target.http.ws_connect(target.url(path), max_msg_size=0) as ws:
                reading = asyncio.ensure_future(_drain(ws))
                for message in begin:
                    await say(ws, message)
                    await asyncio.sleep(0.2)
                while loop.time() < end_s and not reading.done():
                    await say(ws, piece)
                    await asyncio.sleep(PIECE_S)
                held = not reading.done()
                reading.cancel()
                return held
        except (aiohttp.ClientError, ConnectionError):
            return False

    held = await asyncio.gather(*(one() for _ in range(SESSIONS)))
    return f"{sum(held)} of {SESSIONS} rows held"


async def _drain(ws: Socket) -> None:
    async for _ in ws:
        pass


def chat(target: Target) -> Awaitable[str]:
    """Hold sessions of ``/api/chat`` that send a frame, then occasionally three bytes."""
    frame, piece = (moshi.encode(moshi.Audio(bytes(size))) for size in (3840, 2))
    return trickle(target, "/api/chat?ext=1&format=pcm_s16le", [frame], piece)


def recogniser(target: Target) -> Awaitable[str]:
    """Hold sessions of a recogniser that send a frame, then occasionally a sample."""
    frame, piece = (kyutai.encode(kyutai.Audio(np.zeros(n, np.float32))) for n in (1920, 1))
    return trickle(target, kyutai.PATH, [frame], piece)


def listener(target: Target) -> Awaitable[str]:
    """Hold sessions of a synthesiser that send a word, then spaces."""
    word, piece = (kyutai_tts.encode_client(kyutai_tts.Text(text)) for text in ("one ", " "))
    return trickle(target, f"{kyutai_tts.PATH}?format=PcmMessagePack", [word], piece)


def live(target: Target) -> Awaitable[str]:
    """Hold sessions of OpenAI Live that occasionally send a sample."""
    start = {"type": "session.start", "session": {"model": "echo"}}
    piece = {"type": "session.input_audio.append", "audio": base64.b64encode(bytes(2)).decode()}
    return trickle(target, "/v1/live/sessions?model=echo", [start], piece)


def realtime(target: Target) -> Awaitable[str]:
    """Hold sessions of OpenAI Realtime with manual turns that occasionally send a sample."""
    change = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    piece = {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(2)).decode()}
    update = {"type": "session.update", "session": change}
    return trickle(target, "/v1/realtime?model=echo", [update], piece)


async def connections(target: Target) -> str:
    """Open connections as fast as they are accepted, and hold them."""
    end_s, loop = target.end_s, asyncio.get_running_loop()
    held: list[asyncio.StreamWriter] = []
    readers: list[asyncio.StreamReader] = []
    tried = 0

    async def many() -> None:
        nonlocal tried
        while loop.time() < end_s:
            tried += 1
            try:
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection(target.host, target.port)
            except (OSError, TimeoutError):
                await asyncio.sleep(0.05)
                continue
            held.append(writer)
            readers.append(reader)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(many() for _ in range(10)))
    alive = sum(not reader.at_eof() and reader.exception() is None for reader in readers)
    for writer in held:
        writer.close()
    return f"{alive} of {tried} connections held"


async def half_open(target: Target) -> str:
    """Open up to 10,000 connections that send nothing, from 127.0.0.1, which the server never limits."""
    count, end_s = min(HALF_OPEN, raise_open_file_limit() - SPARE_FILES), target.end_s
    held: list[asyncio.StreamWriter] = []
    readers: list[asyncio.StreamReader] = []

    async def many() -> None:
        while len(held) < count and asyncio.get_running_loop().time() < end_s:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
                held.append(writer)
                readers.append(reader)

    await asyncio.gather(*(many() for _ in range(100)))
    opened_s = target.seconds - (end_s - asyncio.get_running_loop().time())
    await asyncio.sleep(max(0.0, end_s - asyncio.get_running_loop().time()))
    alive = sum(not reader.at_eof() and reader.exception() is None for reader in readers)
    for writer in held:
        writer.close()
    return f"{alive} of {len(held)} connections, opened in {opened_s:.1f} s"


async def slow_headers(target: Target) -> str:
    """Send requests whose header arrives at a byte a second."""
    return await _slow(target, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")


async def slow_handshakes(target: Target) -> str:
    """Begin TLS handshakes that stop after their first bytes, and continue at a byte a second."""
    return await _slow(target, b"\x16\x03\x01")


async def _slow(target: Target, first: bytes) -> str:
    end_s, loop = target.end_s, asyncio.get_running_loop()

    async def one() -> bool:
        try:
            reader, writer = await asyncio.open_connection(target.host, target.port)
        except OSError:
            return False
        try:
            writer.write(first)
            while loop.time() < end_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await reader.read()
                        return False
                writer.write(b"a")
            return True
        except ConnectionError:
            return False
        finally:
            writer.close()

    held = [asyncio.ensure_future(one()) for _ in range(200)]
    return f"{sum(await asyncio.gather(*held))} of {len(held)} connections held"


async def uploads(target: Target) -> str:
    """Upload recordings by POST at a byte a second."""
    loop, end_s = asyncio.get_running_loop(), target.end_s

    async def slowly() -> Any:
        yield b"RIFF"
        while loop.time() < end_s:
            await asyncio.sleep(1.0)
            yield b"x"

    async def one() -> str:
        try:
            async with (
                asyncio.timeout(target.seconds),
                target.http.post(target.url(kyutai.PATH, "http"), data=slowly()) as response,
            ):
                return str(response.status)
        except TimeoutError:
            return "held"
        except (aiohttp.ClientError, ConnectionError):
            return "cut"

    found = Counter(await asyncio.gather(*(one() for _ in range(20))))
    return "of 20 recordings " + ", ".join(f"{count} {name}" for name, count in sorted(found.items()))


async def messages(target: Target) -> str:
    """Send small messages as fast as the socket accepts them."""
    piece, sent = moshi.encode(moshi.Audio(bytes(2))), 0
    end_s, loop = target.end_s, asyncio.get_running_loop()
    with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
        async with target.http.ws_connect(target.url("/api/chat?ext=1&format=pcm_s16le")) as ws:
            while loop.time() < end_s:
                async with asyncio.timeout(max(0.1, end_s - loop.time())):
                    for _ in range(100):
                        await ws.send_bytes(piece)
                sent += 100
                await asyncio.sleep(0)
    return f"{sent / target.seconds:,.0f} messages a second written"


async def texts(target: Target) -> str:
    """Send texts of 200 KB, one after the other, each on a separate connection."""
    message = kyutai_tts.encode_client(kyutai_tts.Text("word " * 40_000))
    closed: Counter[str] = Counter()
    end_s, loop = target.end_s, asyncio.get_running_loop()
    while loop.time() < end_s:
        try:
            async with target.http.ws_connect(target.url(f"{kyutai_tts.PATH}?format=PcmMessagePack")) as ws:
                await ws.send_bytes(message)
                async with asyncio.timeout(5):
                    await _drain(ws)
                closed[str(ws.close_code)] += 1
        except TimeoutError:
            closed["taken"] += 1
        except (aiohttp.ClientError, ConnectionError):
            closed["cut"] += 1
    return ", ".join(f"{count} closed with {code}" for code, count in sorted(closed.items()))


async def large_events(target: Target, connections: int) -> str:
    """Send texts of 1 MiB to every kind of socket and body, each the worst case for one way of parsing
    JSON."""
    sockets = (
        "/v1/live/sessions",
        "/v1/realtime",
        "/v1/realtime?intent=transcription",
        "/v1/realtime/translations",
    )
    bodies = ("/v1/audio/speech", "/api/tts_streaming", "/v1/realtime/client_secrets")
    shapes = [text for _, text in json_texts(MAX_EVENT_CHARS, "session.update")]
    end_s, loop, sent = target.end_s, asyncio.get_running_loop(), Counter[str]()

    async def say(path: str) -> None:
        async with target.http.ws_connect(target.url(path)) as ws:
            for shape in shapes:
                await ws.send_str(shape)
                sent["events"] += 1
                with contextlib.suppress(TimeoutError):
                    await ws.receive(timeout=0.5)  # its own error, or the close
                if ws.closed or loop.time() > end_s:
                    return

    async def post(path: str) -> None:
        for shape in shapes:
            async with target.http.post(target.url(path, "http"), data=shape) as response:
                sent[f"bodies answered with {response.status}"] += 1

    async def one(number: int) -> None:
        routes = [*((say, path) for path in sockets), *((post, path) for path in bodies)]
        for way, path in itertools.cycle(routes[number % len(routes) :] + routes[: number % len(routes)]):
            if loop.time() > end_s:
                return
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                await way(path)

    await asyncio.gather(*(one(number) for number in range(connections)))
    return ", ".join(f"{count} {what}" for what, count in sorted(sent.items()))


async def sessions(target: Target) -> str:
    """Open sixteen conversations, and return how many the server admitted and refused."""
    held: list[Socket] = []
    refused = 0
    for _ in range(16):
        try:
            ws = await target.http.ws_connect(target.url("/api/chat?format=pcm_s16le"))
        except aiohttp.WSServerHandshakeError:
            refused += 1
        else:
            held.append(ws)
    for ws in held:
        await ws.close()
    return f"{len(held)} of 16 rows, {refused} refused"


async def nothing(target: Target) -> str:
    """Wait without an attack, to measure the talker's results without one."""
    await asyncio.sleep(target.seconds)
    return "nothing"


ATTACKS: dict[str, Attack] = {
    "no attack": nothing,
    "rows of /api/chat, three bytes now and then": chat,
    "rows of /api/asr-streaming, a sample now and then": recogniser,
    "rows of /api/tts_streaming, a space now and then": listener,
    "rows of OpenAI Live, a sample now and then": live,
    "rows of OpenAI Realtime, turns by hand": realtime,
    "as many sessions as there are rows": sessions,
    "connections, as fast as they are taken": connections,
    "half-open connections, 10,000": half_open,
    "headers, a byte a second": slow_headers,
    "TLS handshakes, a byte a second": slow_handshakes,
    "recordings, a byte a second": uploads,
    "messages of a call, as fast as they are taken": messages,
    "texts of 200 KB": texts,
    "events of 1 MiB, one connection": partial(large_events, connections=1),
    "events of 1 MiB, eleven connections": partial(large_events, connections=11),
}
