"""One end of a control socket between the supervisor and a child, on an event loop.

The socket keeps messages whole (SOCK_SEQPACKET) and takes descriptors (SCM_RIGHTS). Neither side ever waits
for the other to read: what the socket does not take at once stands in a bounded queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

from antiphon.errors import ProtocolError, SessionFailedError
from antiphon.supervisor.messages import Message, pack, unpack

MAX_INLINE_BYTES = 32_768
"""A longer message travels as a memory file: a socket takes no more than its buffer, some 200 KB."""

MAX_DESCRIPTORS = 4

MAX_WAITING = 4096
"""Messages for a peer that does not read. A front end has two seconds and each is about a connection."""

Reply: TypeAlias = Message | Awaitable[Message] | None
Hear: TypeAlias = Callable[[Message, Sequence[int]], Reply]
"""What is done with a message: descriptors become the hearer's, and what it returns answers a question."""


class Peer:
    """The other side. Only the event loop uses it."""

    def __init__(self, sock: socket.socket, hear: Hear, *, lost: Callable[[], None]) -> None:
        """Begin to read; ``lost`` is called once, when the other side has closed or makes no sense."""
        sock.setblocking(False)
        self._socket = sock
        self._hear = hear
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._answering: set[asyncio.Future[None]] = set()
        self._waiting: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._is_open = True
        self._loop.add_reader(sock, self._read)

    @property
    def is_congested(self) -> bool:
        """Whether messages wait that the other side's buffer did not take."""
        return bool(self._waiting)

    def tell(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a statement; the descriptors stay the caller's. To a peer that is gone nothing is sent."""
        self._send(pack(0, message), tuple(descriptors))

    def ask(self, message: Message) -> asyncio.Future[Message]:
        """Send a question; the answer may never come, but ends with an error when the peer is gone."""
        number = next(self._numbers)
        answer: asyncio.Future[Message] = self._loop.create_future()
        if not self._is_open:
            _end(answer)
            return answer
        self._asked[number] = answer
        answer.add_done_callback(lambda _: self._asked.pop(number, None))
        self._send(pack(number, message), ())
        return answer

    def hear_the_rest(self) -> None:
        """Hear what a process that has ended had said, and close."""
        if self._is_open:
            self._read()
        self.close()

    def close(self) -> None:
        """Read and write no more; questions without an answer end with an error."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        while self._waiting:
            _close_all(self._waiting.popleft()[1])
        for answer in list(self._asked.values()):
            if not answer.done():
                _end(answer)

    def _fail(self) -> None:
        if self._is_open:
            self.close()
            self._lost()

    def _send(self, data: bytes, descriptors: tuple[int, ...]) -> None:
        if not self._is_open:
            return
        if len(data) > MAX_INLINE_BYTES:
            with _memory_file(data) as file:
                self._send(b"", (*descriptors, file))
            return
        if not self._waiting and self._sent(data, descriptors):
            return
        if self._is_open and len(self._waiting) >= MAX_WAITING:
            self._fail()
        if self._is_open:
            self._waiting.append((data, tuple(map(os.dup, descriptors))))
            self._loop.add_writer(self._socket, self._write)

    def _sent(self, data: bytes, descriptors: tuple[int, ...]) -> bool:
        """Whether the socket took it, or never will."""
        try:
            # A message of no bytes would look like the end: the first byte says where the message is.
            socket.send_fds(self._socket, [b"m" if data else b"f", data], descriptors)
        except BlockingIOError:
            return False
        except OSError:
            self._loop.call_soon(self._fail)
        return True

    def _write(self) -> None:
        while self._waiting and self._sent(*self._waiting[0]):
            _close_all(self._waiting.popleft()[1])
        if not self._waiting:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        while self._is_open:
            try:
                data, descriptors, _, _ = socket.recv_fds(
                    self._socket, MAX_INLINE_BYTES + 1, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                self._fail()
                return
            body = data[1:]
            if data[:1] == b"f":
                if not descriptors:  # no open file was left for it: a question goes without its answer
                    continue
                body = _read_memory_file(descriptors.pop())
            try:
                self._heard(*unpack(body), descriptors)
            except ProtocolError:
                _close_all(descriptors)
                self._fail()

    def _heard(self, number: int, message: Message, descriptors: Sequence[int]) -> None:
        if number < 0:
            answer = self._asked.get(-number)
            if answer is not None and not answer.done():
                answer.set_result(message)
            return
        reply = self._hear(message, descriptors)
        if number and isinstance(reply, Awaitable):
            task = asyncio.ensure_future(self._answer(number, reply))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif number and reply is not None and not isinstance(reply, Awaitable):
            self._send(pack(-number, reply), ())

    async def _answer(self, number: int, reply: Awaitable[Message]) -> None:
        with contextlib.suppress(SessionFailedError):  # a peer it asked in its turn is gone
            self._send(pack(-number, await reply), ())


def _end(answer: asyncio.Future[Message]) -> None:
    """End a question to a process that is gone."""
    answer.set_exception(SessionFailedError("the process that was asked is gone"))
    answer.exception()  # looked at: who asked may have stopped waiting


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
    file = os.memfd_create("message")
    try:
        with os.fdopen(os.dup(file), "wb") as stream:
            stream.write(data)
        yield file
    finally:
        os.close(file)


def _read_memory_file(file: int) -> bytes:
    with os.fdopen(file, "rb") as stream:
        stream.seek(0)
        return stream.read()


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
