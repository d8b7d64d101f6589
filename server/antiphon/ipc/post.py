"""One end of the control socket between a front end and an engine: messages in order, never waiting."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from antiphon.errors import ProtocolError, ServerFullError
from antiphon.ipc.messages import MAX_PROMPT_BYTES, Message, pack, unpack

MESSAGE_BYTES: Final = 128 << 10
"""More than the longest message: six words, a frame of audio, or the facts of some models."""

MAX_WAITING: Final = 4096
"""Messages that wait for a full socket, some for each of a thousand calls; with more its reader is dead."""

STUCK_S: Final = 2.0
"""A reader that takes no message for so long counts as dead."""

SHORTAGE_S: Final = 5
"""For a caller to come again after open files ran out: calls that end give theirs back."""

DESCRIPTORS: Final = 64
"""That come with one message: those of thirty models."""


class Post:
    """Sends from any thread; reads on one. ``clock`` gives seconds."""

    def __init__(self, control: socket.socket, clock: Callable[[], float]) -> None:
        """Use a SOCK_SEQPACKET socket of AF_UNIX, and own it."""
        control.setblocking(False)
        self._socket, self._clock = control, clock
        self._waiting: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._full_since_s: float | None = None
        self._is_closed = False
        self.has_lost = False  # messages that found no place: neither end knows any more what is so
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    @property
    def has_waiting(self) -> bool:
        """Whether messages wait for the socket; :meth:`flush` tries again."""
        return bool(self._waiting)

    def is_stuck(self, now_s: float) -> bool:
        """Whether the other end has taken nothing for too long."""
        since_s = self._full_since_s
        return self.has_lost or (since_s is not None and now_s - since_s > STUCK_S)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send, now or once there is room; the descriptors are duplicated, the caller keeps its own.

        Raises:
            OSError: no open file is left for a duplicate; the message is not sent.
        """
        data = pack(message)
        with self._lock:
            if self._is_closed:
                return
            if len(self._waiting) >= MAX_WAITING:
                self.has_lost = True
                return
            self._waiting.append((data, duplicates(descriptors)))
            if len(self._waiting) == 1:
                self._flush()

    def send_with(self, message: Message, data: bytes) -> None:
        """Send a message with a descriptor of memory that holds ``data``.

        Raises:
            ServerFullError: this process has no open file left for it.
        """
        try:
            memory = write_bytes(data)
            try:
                self.send(message, [memory])
            finally:
                os.close(memory)
        except OSError as error:
            raise ServerFullError(
                f"a prompt of {len(data)} bytes could not be passed on: {error.strerror}; "
                f"try again in {SHORTAGE_S} s",
                retry_after_s=SHORTAGE_S,
            ) from error

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        while self._waiting:
            data, descriptors = self._waiting[0]
            try:
                socket.send_fds(self._socket, [data], descriptors)
            except BlockingIOError:
                if self._full_since_s is None:
                    self._full_since_s = self._clock()
                return
            except OSError:  # the other end is gone: reading tells
                pass
            self._full_since_s = None
            self._waiting.popleft()
            for descriptor in descriptors:
                os.close(descriptor)

    def receive(self) -> tuple[Message, list[int]] | None:
        """The next message and the descriptors with it, which are the caller's to close; None: not yet.

        Raises:
            EOFError: the other end is gone.
            ProtocolError: the bytes are no message.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, DESCRIPTORS)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError(str(error)) from error
        if not data:
            raise EOFError("the other end has closed its socket")
        try:
            return unpack(data), descriptors
        except ProtocolError:
            close_all(descriptors)
            raise

    def close(self) -> None:
        """Send and receive no more."""
        with self._lock:
            self._is_closed = True
            for _, descriptors in self._waiting:
                close_all(descriptors)
            self._waiting.clear()
        self._socket.close()


def close_all(descriptors: Sequence[int]) -> None:
    """Close each."""
    for descriptor in descriptors:
        os.close(descriptor)


def duplicates(descriptors: Sequence[int]) -> tuple[int, ...]:
    """A duplicate of each.

    Raises:
        OSError: no open file is left; none of them stays open.
    """
    done: list[int] = []
    try:
        done.extend(map(os.dup, descriptors))
    except OSError:
        close_all(done)
        raise
    return tuple(done)


def write_bytes(data: bytes) -> int:
    """A descriptor of memory that holds these bytes.

    Raises:
        OSError: no open file, or no memory, is left.
    """
    descriptor = os.memfd_create("antiphon-prompt", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(descriptors: Sequence[int]) -> bytes:
    """What one such descriptor holds.

    Raises:
        ProtocolError: there is not one, or it holds too much.
    """
    if len(descriptors) != 1:
        raise ProtocolError(f"a prompt comes as one descriptor, not {len(descriptors)}")
    return read_memory(descriptors[0], MAX_PROMPT_BYTES)


def read_memory(descriptor: int, limit: int) -> bytes:
    """What a descriptor of memory holds.

    Raises:
        ProtocolError: it holds too much.
    """
    if (size := os.fstat(descriptor).st_size) > limit:
        raise ProtocolError(f"{size} bytes beside a message, the limit is {limit}")
    pieces: list[bytes] = []
    read = 0
    while read < size and (piece := os.pread(descriptor, size - read, read)):  # 2 GiB at once at most
        pieces.append(piece)
        read += len(piece)
    return b"".join(pieces)
