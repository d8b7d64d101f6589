"""Messages processed at the read: in order, within limits, with faults in place."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
import weakref
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import AudioError
from antiphon.limits import Limits
from antiphon.serve.transport.frames import BINARY, CLOSE, PING, FrameReader
from antiphon.serve.transport.socket import AT_ONCE, Socket
from antiphon.serve.transport.upgrade import open_socket
from tests.serve.client_frames import MASK, MESSAGES, client_frame


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Bring no more."""

    def close(self) -> None:
        """Stay."""

    def abort(self) -> None:
        """Stay."""


class Taker:
    """Takes what is short, leaves half of what is even, and fails at b"bad"."""

    def __init__(self) -> None:
        self.taken: list[bytes | str] = []

    def __call__(self, message: bytes | str) -> bytes | str | None:
        if message == b"bad":
            raise AudioError("no audio")
        if isinstance(message, str) or len(message) > 4:
            return message
        self.taken.append(message)
        return None if len(message) % 2 else message[:1]


UNLIMITED = 1_000_000_000


def socket_on(
    wire: Wire, *, messages_per_s: int = Limits().max_messages_per_s, most_bytes: int = 1000
) -> Socket:
    limits = Limits(max_messages_per_s=messages_per_s, max_bytes_per_s=1000 * UNLIMITED)
    return Socket(wire, limits, lambda: 0.0, FrameReader(most_bytes))


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def socket(wire: Wire) -> Socket:
    return socket_on(wire)


def feed(socket: Socket, *messages: bytes) -> None:
    socket.feed_data(b"".join(client_frame(2, message) for message in messages))


async def receiving(socket: Socket) -> asyncio.Task[bytes | str | None]:
    """A receiver that waits."""
    task = asyncio.create_task(socket.receive_any())
    await asyncio.sleep(0)
    return task


async def test_what_is_taken_wakes_no_receiver_and_what_is_left_does(socket: Socket) -> None:
    taker = Taker()
    with socket.taking_at_once(taker):
        task = await receiving(socket)
        feed(socket, b"1", b"123")
        await asyncio.sleep(0)
        assert taker.taken == [b"1", b"123"]
        assert not task.done()
        feed(socket, b"12")
        assert await task == b"1"


async def test_no_message_overtakes_one_that_waits_or_is_being_followed(socket: Socket) -> None:
    taker = Taker()
    feed(socket, b"1")  # before there is a taker
    with socket.taking_at_once(taker):
        feed(socket, b"2")  # the receiver does not wait yet
        assert [await socket.receive_any(), await socket.receive_any()] == [b"1", b"2"]
        feed(socket, b"3")  # it follows the last one
        task = await receiving(socket)
        assert await task == b"3"
        task = await receiving(socket)
        feed(socket, b"too long", b"4")
        assert [await task, await socket.receive_any()] == [b"too long", b"4"]
        assert not taker.taken


@pytest.mark.parametrize("rate", [500, UNLIMITED])
async def test_of_a_burst_a_few_are_taken_at_once(wire: Wire, rate: int) -> None:
    taker, socket = Taker(), socket_on(wire, messages_per_s=rate)
    with socket.taking_at_once(taker):
        task = await receiving(socket)
        feed(socket, *(b"%03d" % number for number in range(20)))
        assert taker.taken == [b"%03d" % number for number in range(AT_ONCE)]
        assert await task == b"%03d" % AT_ONCE


async def test_nothing_is_taken_while_the_receiver_waits_for_room(socket: Socket) -> None:
    taker, room = Taker(), asyncio.Event()
    with socket.taking_at_once(taker):
        waiting = asyncio.create_task(socket.wait_for(room))
        await asyncio.sleep(0)
        feed(socket, b"1")
        assert not taker.taken
        room.set()
        await waiting
        assert await socket.receive_any() == b"1"


async def test_a_fault_is_raised_where_messages_are_received_before_a_close_behind_it(
    socket: Socket, wire: Wire
) -> None:
    with socket.taking_at_once(Taker()):
        task = await receiving(socket)
        feed(socket, b"bad", b"1")
        socket.feed_data(client_frame(CLOSE, b""))
        with pytest.raises(AudioError, match="no audio"):
            await task
        assert not wire.written  # the close is not answered yet


async def test_a_fault_is_gone_when_it_was_dealt_with(socket: Socket) -> None:
    gc.disable()
    try:
        with socket.taking_at_once(Taker()):
            task = await receiving(socket)
            feed(socket, b"bad")
            try:
                await task
            except AudioError as error:
                seen = weakref.ref(error)
            del task
            await asyncio.sleep(0)  # the loop's own reference
            assert seen() is None
    finally:
        gc.enable()


async def test_after_the_end_of_the_connection_a_fault_is_none(socket: Socket) -> None:
    with socket.taking_at_once(Taker()):
        task = await receiving(socket)
        feed(socket, b"bad")
        socket.feed_eof()
        assert await task is None


@settings(max_examples=30)
@given(MESSAGES, st.lists(st.integers(0, 1 << 18), max_size=12))
async def test_messages_are_received_in_order_however_they_are_cut(
    messages: list[tuple[int, bytes | str]], cuts: list[int]
) -> None:
    """Those that are read by themselves, and those that are not."""
    data, edges = b"", [0]
    for opcode, content in messages:
        data += client_frame(opcode, content.encode() if isinstance(content, str) else content)
        edges.append(len(data))
    edges += [cut % (len(data) + 1) for cut in cuts]
    socket = socket_on(Wire(), messages_per_s=UNLIMITED, most_bytes=1 << 20)
    for start, end in itertools.pairwise(sorted({*edges})):
        socket.feed_data(data[start:end])
    expected = [content for opcode, content in messages if opcode != PING]
    assert [await socket.receive_any() for _ in expected] == expected


async def test_a_part_of_a_message_that_looks_like_a_frame_is_no_frame(socket: Socket) -> None:
    looks = client_frame(BINARY, b"1")
    content = b"before" + bytes(byte ^ MASK[(6 + index) % 4] for index, byte in enumerate(looks)) + b"after"
    data = client_frame(BINARY, content)
    start = data.index(looks)
    for piece in (data[:start], looks, data[start + len(looks) :]):
        socket.feed_data(piece)
    assert await socket.receive_any() == content


SIZES = (0, 1, 125, 126, 127, 65535, 65536, 200_000)


async def test_messages_of_every_length_arrive_whole_at_another_reader() -> None:
    """aiohttp's parser reads them, over a real connection."""

    async def send(request: web.Request) -> web.StreamResponse:
        socket, response = await open_socket(request, Limits(), time.monotonic)
        socket.send([*(bytes([size % 251]) * size for size in SIZES), "é\ud800"])
        socket.ping()
        await socket.close(1000, "done")
        return response

    app = web.Application()
    app.router.add_get("/", send)
    async with (
        TestServer(app) as server,
        aiohttp.ClientSession() as http,
        http.ws_connect(server.make_url("/"), autoping=False, max_msg_size=0) as ws,
    ):
        for size in SIZES:
            message = await ws.receive()
            assert (message.type, message.data) == (WSMsgType.BINARY, bytes([size % 251]) * size)
        assert (await ws.receive()).data == "é?"
        assert (await ws.receive()).type is WSMsgType.PING
        assert (await ws.receive()).type is WSMsgType.CLOSE


@pytest.mark.parametrize(("size", "header"), [(5, 2), (125, 2), (126, 4), (65535, 4), (65536, 10)])
async def test_the_shortest_header_is_used(socket: Socket, wire: Wire, size: int, header: int) -> None:
    socket.send((bytes(size),))
    assert len(wire.written) == size + header
