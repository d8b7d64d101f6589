"""Control sockets: requests, descriptors, long messages, and peers that do not read."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Sequence

import pytest

from antiphon.errors import SessionFailedError
from antiphon.ipc import message_socket
from antiphon.ipc.message_socket import MessageSocket, local_pair
from antiphon.supervisor.messages import CONTROL, Body, ControlReply, Cut, Load, Message, Ping, Pong, Question


class Side:
    """One end, with what it heard."""

    def __init__(self, sock: socket.socket) -> None:
        self.heard: list[Message] = []
        self.descriptors: list[int] = []
        self.lost = 0
        self.peer = MessageSocket(sock, CONTROL, self.hear, lost=self.count)

    def count(self, reason: str) -> None:
        self.lost += 1
        self.reason = reason

    def hear(self, message: Message, descriptors: Sequence[int]) -> ControlReply:
        self.heard.append(message)
        self.descriptors += descriptors
        match message:
            case Ping():
                return Pong(0.5)
            case Question():
                return self.later(message.what)
        return None

    async def later(self, what: str) -> Message:
        await asyncio.sleep(0)
        return Body(what.encode() * 1_000_000)


@pytest.fixture
def sides() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


async def test_questions_are_answered_at_once_or_later_and_at_any_length(
    sides: tuple[socket.socket, socket.socket],
) -> None:
    one, two = map(Side, sides)
    assert await one.peer.ask(Ping()) == Pong(0.5)
    bodies = await asyncio.gather(one.peer.ask(Question("a")), two.peer.ask(Question("b")))
    assert [body.data for body in bodies if isinstance(body, Body)] == [b"a" * 1_000_000, b"b" * 1_000_000]
    one.peer.close()
    two.peer.close()


async def test_in_one_process_messages_come_as_they_are_in_order_and_later() -> None:
    heard: list[Message] = []
    one, other = local_pair()

    def hear(message: Message, descriptors: Sequence[int]) -> ControlReply:
        heard.append(message)
        for descriptor in descriptors:
            os.write(descriptor, b"hello")
            os.close(descriptor)
        return answer_later() if isinstance(message, Question) else Pong(0.5)

    async def answer_later() -> Message:
        await asyncio.sleep(0)
        return Body(b"later")

    other.connect(hear)
    read, write = os.pipe()
    sent = [Load(1, 0), Body(b""), Load(2, 0)]
    for message in sent:
        one.send(message, [write] if isinstance(message, Body) else [])
    os.close(write)
    assert not heard
    answers = await asyncio.gather(one.ask(Ping()), one.ask(Question("a")))
    assert list(answers) == [Pong(0.5), Body(b"later")]
    assert [id(it) for it in heard[:3]] == [id(it) for it in sent]
    assert os.read(read, 10) == b"hello"
    os.close(read)


async def test_descriptors_come_along_with_short_and_long_messages(
    sides: tuple[socket.socket, socket.socket],
) -> None:
    one, two = map(Side, sides)
    for data in (b"", bytes(100_000)):
        read, write = os.pipe()
        one.peer.send(Body(data), [write])
        os.close(write)
        while not two.descriptors:  # noqa: ASYNC110 (its turns of the loop are what is waited for)
            await asyncio.sleep(0)
        with os.fdopen(two.descriptors.pop(), "wb") as theirs:
            theirs.write(b"hello")
        assert os.read(read, 10) == b"hello"
        os.close(read)
    one.peer.close()
    two.peer.close()


async def test_what_a_socket_does_not_take_waits_in_order(
    sides: tuple[socket.socket, socket.socket],
) -> None:
    sides[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    one, two = map(Side, sides)
    for number in range(1000):
        one.peer.send(Load(number, 0))
    assert one.peer.is_congested
    while len(two.heard) < 1000:  # noqa: ASYNC110 (its turns of the loop are what is tested)
        await asyncio.sleep(0)
    assert two.heard == [Load(number, 0) for number in range(1000)]
    assert not one.peer.is_congested
    one.peer.close()
    two.peer.close()


async def test_a_peer_that_never_reads_is_given_up(
    sides: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_socket, "MAX_WAITING", 10)
    one = Side(sides[0])
    answer = one.peer.ask(Ping())
    for _ in range(3000):
        one.peer.send(Cut())
    assert one.lost == 1
    with pytest.raises(SessionFailedError):
        await answer
    sides[1].close()


async def test_a_peer_that_is_gone_answers_nothing(sides: tuple[socket.socket, socket.socket]) -> None:
    one = Side(sides[0])
    answer = one.peer.ask(Ping())
    sides[1].close()
    with pytest.raises(SessionFailedError, match="the process of the request has ended"):
        await answer
    with pytest.raises(SessionFailedError):
        await one.peer.ask(Ping())
    one.peer.send(Cut())
    assert one.lost == 1


async def test_a_long_message_for_which_no_open_file_is_left_is_lost_alone(
    sides: tuple[socket.socket, socket.socket],
) -> None:
    one, two = map(Side, sides)
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    one.peer.send(Body(b"a" * 1_000_000))
    one.peer.send(Cut())
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        async with asyncio.timeout(120.0):
            while not two.heard:  # noqa: ASYNC110 (the other side's word)
                await asyncio.sleep(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert two.heard == [Cut()]
    assert (two.lost, faults) == (0, [])
    one.peer.close()
    two.peer.close()


async def test_nonsense_is_the_end_of_a_peer(sides: tuple[socket.socket, socket.socket]) -> None:
    one = Side(sides[0])
    sides[1].send(b"m\xff\xff")
    while not one.lost:  # noqa: ASYNC110 (its turns of the loop are what is waited for)
        await asyncio.sleep(0)
    assert one.lost == 1
    sides[1].close()
