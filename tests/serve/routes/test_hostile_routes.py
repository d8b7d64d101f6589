"""Hostile clients on every route: each gets an error in its protocol, others stay unaffected.

One server has a model of every kind. While one route is attacked, well-behaved clients of all of them must be
given exactly what they are given alone; afterwards every row is free, and no memory has been kept.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import tracemalloc
from collections.abc import Mapping, Sequence

import aiohttp
import numpy as np
import pytest
from aiohttp import WSMsgType

from antiphon.protocol import kyutai, moshi, transcription_request
from antiphon.serve.routes.kinds import ROUTES
from tests.serve.harness import PATIENCE_S, Server
from tests.serve.hostile import ATTACKS, Asked, Message, Upgraded
from tests.serve.hostile_requests import FRAMES, REQUESTS, UPGRADE, queries
from tests.serve.neighbours import NEIGHBOURS, all_is_quiet, assert_no_fault, everything, neighbourhood

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

REFUSED = {1007, 1008, 1009}
"""What a client hears that said something which cannot be; 1000 where it had said the end before."""

SOCKETS = [route for route, attack in ATTACKS.items() if isinstance(attack, Upgraded)]
SESSIONS = [
    route
    for route in ATTACKS
    if route in SOCKETS or (route.startswith(("POST /api", "POST /v1")) and not route.endswith("/hangup"))
]
QUESTIONS = [route for route in ATTACKS if route not in SESSIONS]
FIRST_MESSAGES = 3
"""How much nonsense one connection gets in, at most, before its last straw."""


async def talk_nonsense(server: Server, url: str, messages: Sequence[Message]) -> None:
    """Say it all: the server ends the connection, says why as its protocol does, and has no fault itself."""
    said, last = (url, messages), None
    try:
        async with server.http.ws_connect(server.url(url, "ws"), max_msg_size=0) as ws:
            for message in messages:
                if ws.closed:
                    break
                if isinstance(message, bytes):
                    await ws.send_bytes(message)
                else:
                    await ws.send_str(message)
            while (received := await ws.receive(PATIENCE_S)).type in (WSMsgType.BINARY, WSMsgType.TEXT):
                last = received.data
    except TimeoutError as error:
        raise AssertionError(f"not closed after {said}") from error
    except aiohttp.ClientConnectionResetError:
        return  # it closed while we were writing: what it said is lost with the connection
    code = received.data if received.type is WSMsgType.CLOSE else ws.close_code
    is_done = ("tts_streaming" in url or "/v1/live" in url) and code == 1000
    assert code in REFUSED or is_done, (code, last, said)
    if not is_done and ("MessagePack" in url or "asr-streaming" in url):
        assert last is not None, said
        assert isinstance(kyutai.decode_server(last), kyutai.Error), said
    if "/v1/" in url and code == 1008:
        assert isinstance(last, str), said
        assert json.loads(last)["type"] == "error", said
    if "ext=1" in url:
        assert last is not None, said
        told = moshi.decode(last)
        assert isinstance(told, moshi.Event), said
        assert (told.type, told.fields["code"]) == ("error", code), said


async def raid(server: Server, attack: Upgraded, seed: int) -> None:
    """Every message of an attack, a few to a connection, over every one of its addresses."""
    random = np.random.default_rng(seed)
    messages = attack.messages(random)
    order = [messages[int(index)] for index in random.permutation(len(messages))]
    at = 0
    while at < len(order):
        few = int(random.integers(1, FIRST_MESSAGES + 1))
        url = attack.urls[at % len(attack.urls)]
        await talk_nonsense(server, url, [*order[at : at + few], *attack.last_straws])
        at += few


async def ask_nonsense(
    server: Server, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> None:
    """One request: an answer below 500, or that there is no room, in words and never a page of ours."""
    url = server.url(path)
    async with server.http.request(
        method, url, data=body, headers=headers, allow_redirects=False
    ) as response:
        assert response.status < 500 or response.status == 503, (method, path, body[:100], response.status)
        if response.status >= 400:
            text = await response.text(errors="replace")
            assert "Traceback" not in text
            assert len(text) < 2000 + len(path), (path, text)


async def siege(server: Server, route: str, attack: Asked | Upgraded, seed: int) -> None:
    """Queries, methods and bodies; of a WebSocket route, what comes before its upgrade."""
    method, _, path = route.partition(" ")
    path = path.replace("{path:.*}", "index.html")
    random = np.random.default_rng(seed)
    for query in queries(random):
        await ask_nonsense(server, method, f"{path}?{query}")
        await ask_nonsense(server, method, f"/m/{query[:40].replace('/', '%2f') or 'x'}{path}")
        if isinstance(attack, Upgraded):
            await ask_nonsense(server, method, f"{path}?{query}", headers=UPGRADE)
    for wrong in ("PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        await ask_nonsense(server, wrong, path, b"{}")
    if isinstance(attack, Asked):
        for body in attack.bodies(random):
            await ask_nonsense(server, method, path, body)
            if attack.headers:
                await ask_nonsense(server, method, path, body, attack.headers)
            await ask_nonsense(server, method, path, body, {"Content-Type": "multipart/form-data"})


async def attacked(server: Server, routes: Sequence[str], *seeds: int) -> None:
    async with asyncio.TaskGroup() as group:
        for route in routes:
            attack = ATTACKS[route]
            group.create_task(siege(server, route, attack, seeds[0]))
            if isinstance(attack, Upgraded):
                for seed in seeds:
                    group.create_task(raid(server, attack, seed))


async def test_every_route_is_attacked() -> None:
    async with everything() as server:
        there = {
            f"{route.method} {route.resource.canonical.removeprefix('/m/{model}')}"
            for route in server.app.router.routes()
            if route.resource is not None and route.method != "HEAD"
        }
    pages = {"GET /{path}"}
    assert {attack.replace(":.*}", "}") for attack in ATTACKS} == there | pages
    assert {f"{route.method} {route.path}" for routes in ROUTES.values() for route in routes} <= set(ATTACKS)


@pytest.mark.parametrize("routes", [*([route] for route in SESSIONS), QUESTIONS], ids=" ".join)
async def test_an_attack_is_answered_and_heard_by_nobody_else(
    routes: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with everything() as server:
        alone = {name: await visit(server) for name, visit in NEIGHBOURS.items()}
        async with asyncio.TaskGroup() as group:
            attacking = group.create_task(attacked(server, routes, 0, 1))
            while not attacking.done():
                assert await neighbourhood(server) == alone
        assert await neighbourhood(server) == alone
        await all_is_quiet(server)
    assert_no_fault(caplog)


async def handshake(server: Server, url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket without a library, for what no library would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    lines = [f"GET {url} HTTP/1.1", f"Host: 127.0.0.1:{server.port}"]
    lines += [f"{name}: {value}" for name, value in UPGRADE.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


def closes(data: bytes) -> int | None:
    """The code of the close frame a server's bytes end with."""
    while len(data) >= 2:
        size, head = data[1], 2
        if size >= 126:
            head = 4 if size == 126 else 10
            size = int.from_bytes(data[2:head], "big")
        if data[0] == 0x88:
            return int.from_bytes(data[head : head + 2], "big")
        data = data[head + size :]
    return None


# A watcher of a session that is not there is gone before its frames are read.
@pytest.mark.parametrize("route", [route for route in SOCKETS if not route.endswith("/attach")])
async def test_frames_against_the_rules_end_their_connection(
    route: str, caplog: pytest.LogCaptureFixture
) -> None:
    attack = ATTACKS[route]
    assert isinstance(attack, Upgraded)
    async with everything() as server:
        alone = await neighbourhood(server)
        for name, (data, codes) in FRAMES.items():
            reader, writer = await handshake(server, attack.urls[-1])
            writer.write(data)
            async with asyncio.timeout(PATIENCE_S):
                try:
                    found = closes(await reader.read(-1))
                except ConnectionResetError:
                    found = None  # it closed with our bytes unread; the reset overtook its close frame
                assert found in (*codes, None) if len(data) > 1000 else found in codes, (name, found)
            writer.close()
        assert await neighbourhood(server) == alone
        await all_is_quiet(server)
    assert_no_fault(caplog)


async def status_of(server: Server, request: str) -> int | None:
    """The status that answers bytes; None where the connection just ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request.encode("latin-1"))
    async with asyncio.timeout(PATIENCE_S):
        try:
            answer = await reader.readline()
        except ConnectionResetError:
            answer = b""  # it closed with our bytes unread
    writer.close()
    return int(answer.split()[1]) if answer else None


@pytest.mark.parametrize("route", [route for route in SESSIONS if route.startswith("POST")])
async def test_a_request_against_the_rules_is_refused(route: str, caplog: pytest.LogCaptureFixture) -> None:
    method, _, path = route.partition(" ")
    async with everything(upload_timeout_s=1.0) as server:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        async with asyncio.TaskGroup() as group:
            answers = {
                name: group.create_task(status_of(server, f"{head}{headers}\r\n\r\n{body}"))
                for name, (headers, body) in REQUESTS.items()
            }
        found = {name: answer.result() for name, answer in answers.items()}
        assert {status for status in found.values() if status is not None} <= {400, 408, 413, 415}, found
        # What is no form by its first bytes is not waited for.
        assert found["a length that never comes"] == (400 if path == transcription_request.PATH else 408)
        await neighbourhood(server)
        await all_is_quiet(server)
    assert_no_fault(caplog)


def memory_held() -> int:
    """Bytes that Python holds in objects made since tracing began."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def test_attacks_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Three times the same on every route of sessions: the third keeps nothing, and takes little."""
    caplog.set_level(logging.CRITICAL, "antiphon")  # what pytest keeps of our log is no memory of ours
    async with everything() as server:
        await attacked(server, SESSIONS, 7)
        await all_is_quiet(server)
        tracemalloc.start()
        try:
            await attacked(server, SESSIONS, 7)
            await all_is_quiet(server)
            before = memory_held()
            await attacked(server, SESSIONS, 7)
            await all_is_quiet(server)
            async with asyncio.timeout(PATIENCE_S):  # a connection that lingers holds its last megabyte
                while memory_held() - before >= 500_000:  # noqa: ASYNC110 (no event for it)
                    await asyncio.sleep(0.1)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 30_000_000
