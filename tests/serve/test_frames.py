"""Our WebSocket frames, read back by aiohttp's parser over a real connection."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from antiphon.serve.transport.frames import PING, frame

SIZES = (0, 1, 125, 126, 127, 65535, 65536, 200_000)


async def send_frames(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse(compress=False)
    await ws.prepare(request)
    assert request.transport is not None
    request.transport.write(b"".join(frame(bytes([size % 251]) * size) for size in SIZES) + frame(b"?", PING))
    await ws.close()
    return ws


async def test_frames_of_every_length_arrive_whole() -> None:
    app = web.Application()
    app.router.add_get("/", send_frames)
    async with (
        TestServer(app) as server,
        aiohttp.ClientSession() as http,
        http.ws_connect(server.make_url("/"), autoping=False, max_msg_size=0) as ws,
    ):
        for size in SIZES:
            message = await ws.receive()
            assert (message.type, message.data) == (WSMsgType.BINARY, bytes([size % 251]) * size)
        assert (await ws.receive()).type is WSMsgType.PING
        assert (await ws.receive()).type is WSMsgType.CLOSE


@pytest.mark.parametrize(("size", "header"), [(5, 2), (125, 2), (126, 4), (65535, 4), (65536, 10)])
def test_the_shortest_header_is_used(size: int, header: int) -> None:
    assert len(frame(bytes(size))) == size + header
