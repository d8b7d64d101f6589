"""Declared messages over a Unix socket: between the supervisor and its children, front ends and engines.

Within one process messages are passed as objects (:class:`LocalSocket`).

The socket keeps message boundaries (SOCK_SEQPACKET) and passes file descriptors (SCM_RIGHTS). Sending never
blocks: messages that the socket does not accept at once wait in a bounded queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import operator
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

import msgspec

from antiphon.errors import ProtocolError, SessionFailedError

MAX_INLINE_BYTES: Final = 128 << 10
"""Longest message sent inline, in bytes; a longer message is sent as a memory file, because a socket holds
about 200 KB.
"""

MAX_BYTES: Final = 256 << 20
"""Largest message in bytes, enough for an embedded persona of several minutes."""

MAX_CALL_CHARS: Final = 64

MAX_DESCRIPTORS: Final = 64
"""Maximum number of descriptors of a message: memory and wake-up for each of thirty engines."""

MAX_WAITING: Final = 4096
"""Maximum number of messages that wait for the other side (several for each of a thousand calls); beyond it,
the other side counts as dead.
"""

MESSAGES_A_TURN: Final = 64
"""Messages read from one socket before the event loop serves others."""

IS_INLINE, IS_FILE = b"m", b"f"
"""The first byte of each packet; an empty message would look like the end of the stream."""


class MessageBase(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """A declared message. On the socket it is an array of its name and its fields, which are checked against
    their types.
    """


M = TypeVar("M", bound=MessageBase)
Reply: TypeAlias = M | Awaitable[M] | None
Handle: TypeAlias = Callable[[M, Sequence[int]], Reply[M]]
"""Handles a message: the function owns the descriptors, and its result is the answer to a question."""


class Codec(Generic[M]):
    """Encodes and decodes messages: a question has a number, its answer the negative number, and a statement
    0.
    """

    def __init__(
        self,
        kinds: Sequence[type[M]],
        *,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
        unreadable: Callable[[str, str], M] | None = None,
    ) -> None:
        """Read messages of these kinds; the hooks are those of msgspec.

        ``unreadable`` makes a replacement for an unreadable message about a call. Its arguments are the call
        (the message's first field) and the reason.
        """
        self._about_calls = {kind.__name__ for kind in kinds if kind.__struct_fields__[:1] == ("call",)}
        self._unreadable = unreadable
        self._encoder = msgspec.msgpack.Encoder(enc_hook=enc_hook)
        union: Any = functools.reduce(operator.or_, kinds)
        self._decoder: msgspec.msgpack.Decoder[tuple[int, M]] = msgspec.msgpack.Decoder(
            tuple[int, union], dec_hook=dec_hook
        )

    def encode(self, number: int, message: MessageBase) -> bytes:
        """Encode a message: a question with its ``number``, an answer with the negative number, or a
        statement with 0.
        """
        return self._encoder.encode((number, message))

    def decode(self, data: bytes) -> tuple[int, M]:
        """Decode the bytes of :meth:`encode`.

        Raises:
            ProtocolError: the bytes are not a message of these kinds, or a field is out of range.
        """
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            words = f"{len(data)} bytes on a control socket are no message: {error}"
            if (message := self.instead(data, words)) is not None:
                return 0, message
            raise ProtocolError(words) from error

    def head(self, message: MessageBase) -> bytes:
        """The beginning of a message, up to the call that it is about."""
        return self._encoder.encode((0, [type(message).__name__, getattr(message, "call", None)]))

    def instead(self, data: bytes, words: str) -> M | None:
        """The replacement of an unreadable message, with this reason; None if the message is not about a
        call.
        """
        if self._unreadable is None:
            return None
        try:
            _, (kind, call, *_) = msgspec.msgpack.decode(data)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            return None
        if not (isinstance(kind, str) and kind in self._about_calls):
            return None
        is_call = isinstance(call, str) and 0 < len(call) <= MAX_CALL_CHARS
        return self._unreadable(call, words) if is_call else None


def leaves(base: type[M]) -> tuple[type[M], ...]:
    """The kinds of messages below a class, in order of declaration."""
    below = [kind for child in base.__subclasses__() for kind in leaves(child) or (child,)]
    return tuple(below)


class MessageSocket(Generic[M]):
    """One side of a control socket. Only its event loop uses it."""

    def __init__(
        self, sock: socket.socket, codec: Codec[M], handle: Handle[M], *, lost: Callable[[str], None]
    ) -> None:
        """Begin to read a socket, and own it.

        ``lost`` is called once, with the reason, when the other side has closed, does not read, or sends an
        invalid message.
        """
        sock.setblocking(False)
        self._socket, self._codec = sock, codec
        self._handle, self._lost = handle, lost
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[M]] = {}
        self._answering: set[asyncio.Future[None]] = set()
        self._waiting: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._congested_since_s: float | None = None
        self._is_open = True
        self._loop.add_reader(sock, self._read)

    @property
    def is_congested(self) -> bool:
        """Whether messages wait because the socket does not accept them."""
        return bool(self._waiting)

    @property
    def congested_s(self) -> float:
        """Seconds since the other side last read a message, while messages wait."""
        since_s = self._congested_since_s
        return 0.0 if since_s is None else self._loop.time() - since_s

    def send(self, message: MessageBase, descriptors: Sequence[int] = ()) -> None:
        """Send a statement; the caller keeps the descriptors and closes them. No effect once the other side
        is gone.

        Raises:
            OSError: no file descriptor is free for a long message, or for descriptors that have to wait.
        """
        self._send(0, message, tuple(descriptors))

    def ask(self, message: MessageBase) -> asyncio.Future[M]:
        """Send a question; the future returns its answer, or fails when the other side has ended."""
        number = next(self._numbers)
        answer: asyncio.Future[M] = self._loop.create_future()
        if not self._is_open:
            _end(answer)
            return answer
        self._asked[number] = answer
        answer.add_done_callback(lambda _: self._asked.pop(number, None))
        self._send(number, message)
        return answer

    def read_rest(self) -> None:
        """Handle the messages that an ended process has sent, then close."""
        while self._is_open and self._read():
            pass
        self.close()

    def close(self) -> None:
        """Close the socket; pending questions fail."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        while self._waiting:
            close_all(self._waiting.popleft()[1])
        for answer in list(self._asked.values()):
            if not answer.done():
                _end(answer)

    def _fail(self, reason: str) -> None:
        if self._is_open:
            self.close()
            self._lost(reason)

    def _send(self, number: int, message: MessageBase, descriptors: tuple[int, ...] = ()) -> None:
        if not self._is_open:
            return
        data = self._codec.encode(number, message)
        if len(data) > MAX_INLINE_BYTES:
            with _memory_file(data) as file:
                self._queue(IS_FILE + self._codec.head(message), (*descriptors, file))
        else:
            self._queue(IS_INLINE + data, descriptors)

    def _queue(self, data: bytes, descriptors: tuple[int, ...]) -> None:
        if not self._waiting and self._sent(data, descriptors):
            return
        if len(self._waiting) >= MAX_WAITING:
            self._fail("it reads no messages")
            return
        self._waiting.append((data, _duplicates(descriptors)))
        self._loop.add_writer(self._socket, self._write)

    def _sent(self, data: bytes, descriptors: tuple[int, ...]) -> bool:
        """Whether the message needs no retry: the socket accepted it, or never will."""
        try:
            socket.send_fds(self._socket, [data], descriptors)
        except BlockingIOError:
            if self._congested_since_s is None:
                self._congested_since_s = self._loop.time()
            return False
        except OSError:  # the other side is gone: reading reports it, after its last messages
            pass
        self._congested_since_s = None
        return True

    def _write(self) -> None:
        while self._waiting and self._sent(*self._waiting[0]):
            close_all(self._waiting.popleft()[1])
        if not self._waiting:
            self._loop.remove_writer(self._socket)

    def _read(self) -> bool:
        """Handle one turn's messages; returns whether there may be more."""
        has_failed = False
        for _ in range(MESSAGES_A_TURN):
            if not self._is_open:
                return False
            try:
                data, descriptors, _, _ = socket.recv_fds(
                    self._socket, MAX_INLINE_BYTES + 1, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return False
            except OSError:  # occurs once before the last messages of the other side
                data, descriptors = b"", []
                if not has_failed:
                    has_failed = True
                    continue
            if not data:
                self._fail("its process has ended")
                return False
            try:
                if data[:1] == IS_FILE and not descriptors:
                    lost = self._codec.instead(data[1:], "no file descriptor was free for a long message")
                    if lost is not None:
                        self._receive(0, lost, [])
                    continue
                body = data[1:] if data[:1] == IS_INLINE else _read_file(descriptors)
                self._receive(*self._codec.decode(body), descriptors)
            except ProtocolError as error:
                close_all(descriptors)
                self._fail(str(error))
                return False
        return True

    def _receive(self, number: int, message: M, descriptors: Sequence[int]) -> None:
        if number < 0:
            answer = self._asked.get(-number)
            if answer is not None and not answer.done():
                answer.set_result(message)
            return
        reply = self._handle(message, descriptors)
        if number and isinstance(reply, Awaitable):
            task = asyncio.ensure_future(self._answer(number, reply))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif number and reply is not None and not isinstance(reply, Awaitable):
            self._send(-number, reply)

    async def _answer(self, number: int, reply: Awaitable[M]) -> None:
        with contextlib.suppress(SessionFailedError):  # the process that sent the question is gone
            self._send(-number, await reply)


class LocalSocket(Generic[M]):
    """One end of a pair of sockets within one process and event loop: messages remain objects.

    Each is handled in a later turn of the loop, in order.
    """

    is_congested: Final = False

    def __init__(self) -> None:
        """Start unconnected; :func:`local_pair` makes both ends."""
        self.other = self
        self._loop = asyncio.get_running_loop()
        self._handle: Handle[M] = lambda *_: None

    def connect(self, handle: Handle[M], **_lost: Callable[[str], None]) -> Self:
        """Start to handle messages; the callback for a lost peer is never called."""
        self._handle = handle
        return self

    def send(self, message: M, descriptors: Sequence[int] = ()) -> None:
        """Send a statement; the caller keeps the descriptors and closes them.

        Raises:
            OSError: no file descriptor is free for the duplicates.
        """
        self._loop.call_soon(self._deliver, message, _duplicates(descriptors))

    def ask(self, message: M) -> asyncio.Future[M]:
        """Send a question; the future returns its answer."""
        return asyncio.ensure_future(self._ask(message))

    def read_rest(self) -> None:
        """No effect: the loop has handled all messages of the other end."""

    def _deliver(self, message: M, descriptors: Sequence[int]) -> None:
        self.other._handle(message, descriptors)

    async def _ask(self, message: M) -> M:
        reply = self.other._handle(message, [])
        answer = await reply if isinstance(reply, Awaitable) else reply
        assert answer is not None
        return answer


def local_pair() -> tuple[LocalSocket[Any], LocalSocket[Any]]:
    """Both ends of a local control socket, on the running loop."""
    one, other = LocalSocket[Any](), LocalSocket[Any]()
    one.other, other.other = other, one
    return one, other


def _end(answer: asyncio.Future[Any]) -> None:
    """Fail a question to a process that is gone."""
    answer.set_exception(SessionFailedError("the process of the request has ended"))
    answer.exception()  # mark as retrieved: its owner may no longer wait


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
    file = write_file(data)
    try:
        yield file
    finally:
        os.close(file)


def write_file(data: bytes) -> int:
    """Write bytes to a memory file and return its descriptor.

    Raises:
        OSError: no file descriptor, or no memory, is free.
    """
    descriptor = os.memfd_create("antiphon-message", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_file(descriptor: int, most: int) -> bytes:
    """Read the bytes of a memory file.

    Raises:
        ProtocolError: there are more than ``most``.
    """
    if (size := os.fstat(descriptor).st_size) > most:
        raise ProtocolError(f"{size} bytes with a message, the limit is {most}")
    pieces: list[bytes] = []
    read = 0
    while read < size and (piece := os.pread(descriptor, size - read, read)):  # one write takes at most 2 GiB
        pieces.append(piece)
        read += len(piece)
    return b"".join(pieces)


def _read_file(descriptors: list[int]) -> bytes:
    """The bytes of the last descriptor, which is closed."""
    if not descriptors:
        raise ProtocolError("a message that begins with neither of the marks of a message")
    file = descriptors.pop()
    try:
        return read_file(file, MAX_BYTES)
    finally:
        os.close(file)


def _duplicates(descriptors: Sequence[int]) -> tuple[int, ...]:
    """Duplicate each descriptor; if that fails for one, none remains open."""
    done: list[int] = []
    try:
        done.extend(map(os.dup, descriptors))
    except OSError:
        close_all(done)
        raise
    return tuple(done)


def close_all(descriptors: Sequence[int]) -> None:
    """Close all descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
