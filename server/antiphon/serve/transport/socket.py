"""One WebSocket or TCP connection of a session: messages in both directions, and a limit for every wait.

aiohttp accepts the request of a WebSocket; after the upgrade the received bytes go to the socket, which reads
frames itself. A single short frame, the usual case for speech, is read at once; any other frame is read by a
frame reader. These rules apply: the peer must send a sign of life, unless the server does not read; messages
are read no faster than a maximum rate, and ahead of the conversation only up to a bound; unsent bytes are
counted; a close waits for the peer's answer. There is no compression, because it would cost more than it
saves on Opus.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, cast

from antiphon.errors import SessionTimeoutError
from antiphon.limits import Limits
from antiphon.protocol.close_codes import CloseCode
from antiphon.serve.transport.frames import (
    BINARY,
    CLOSE,
    FINAL,
    FRAGMENTS,
    MASKED,
    PING,
    PONG,
    TEXT,
    FrameError,
    FrameReader,
    close_frame,
    control_frame,
    read_close,
)
from antiphon.serve.transport.stream import StreamReader
from antiphon.serve.transport.transport import M, Message, T, Taker, kept_bytes, peer_has_ended

READ_AHEAD_BYTES: Final = 1_048_576
"""Maximum bytes that are read ahead, and the size of the largest message: minutes of Opus, an hour of text,
or 9 s of numbers in msgpack.
"""

COMING_BACK: Final = 4000
"""The close code of a peer that abandons the connection, but not its call."""

LOOK_S: Final = 0.25
"""Seconds between checks of a connection that is not being read, so that its row is freed within a second."""

RECHECK_S: Final = 0.02
"""Seconds between checks of a congested connection: a quarter of a frame."""

AHEAD_S: Final = 0.5
"""Seconds that a peer may be ahead of its rates: the data of that time is read at once, in a millisecond or
two."""

HOLD_S: Final = 0.5
"""Seconds for which a peer that is further ahead of its rates is not read."""

AT_ONCE: Final = 8
"""Messages of one read, and messages ahead of a peer's rate, above which they wait for the next turn."""

FRAGMENT_MESSAGES: Final = 16
"""Messages that ``MAX_FRAGMENTS`` fragments count as: 2,000 fragments a second are read, in 4 ms."""

SHORT_BYTES: Final = 125
"""Maximum bytes of a message whose frame has its length in the second byte: 20 ms of Opus at 48 kbit/s."""

CPU_SHARE: Final = 0.05
"""The fraction of a core for decoding one peer's messages; a peer that needs more is read more slowly."""


class Socket:
    """An upgraded WebSocket, or a TCP connection; used on the event loop only.

    With ``keeps_open`` it serves several calls, one after the other: the normal end of a call leaves it open.
    ``idle_since_s``: the time since which no request has been in progress; None during a request.
    """

    keeps_open = False
    idle_since_s: float | None

    def __init__(
        self,
        transport: asyncio.Transport,
        limits: Limits,
        clock: Callable[[], float],
        reader: FrameReader | StreamReader,
    ) -> None:
        """Begin after the upgrade (:mod:`antiphon.serve.transport.upgrade`), or with a TCP connection."""
        self._transport = transport
        self._limits = limits
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._reader, self._stream = reader, reader if isinstance(reader, StreamReader) else None
        self._short_bytes = min(SHORT_BYTES, reader.max_bytes) if isinstance(reader, FrameReader) else -1
        self._message_s, self._byte_s = 1.0 / limits.max_messages_per_s, 1.0 / limits.max_bytes_per_s
        self._paid_until_s = 0.0
        self._pauses = 0
        self._is_held = False
        self._ahead: deque[Message] = deque()
        self.ahead_bytes = 0
        self._news: asyncio.Future[None] = self._loop.create_future()  # set while no receiver waits
        self._news.cancel()
        self._taker: Taker | None = None
        self._offered = 0  # to the taker, of this read
        self._fault: Exception | None = None
        self._broken: FrameError | None = None  # of a TCP connection, after all messages
        self._is_over = asyncio.Event()
        self._last: tuple[int, str] | None = None
        self._is_closing = False
        self._stall_start_s: float | None = None
        self._last_stall_s = (0.0, 0.0)
        self.seen_s = self.idle_since_s = clock()
        self.close_code: int | None = None

    # Called by the network.

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes from the network."""
        size = len(data) - 6
        is_short = 0 <= size <= self._short_bytes and data[0] == FINAL | BINARY and data[1] == MASKED | size
        if is_short and self._reader.is_empty and not self._is_full():
            mask = (data[2:6] * (size // 4 + 1))[:size]
            bits = int.from_bytes(data[6:], "little") ^ int.from_bytes(mask, "little")
            self._offered = 0
            self._take(BINARY, bits.to_bytes(size, "little"))
        elif not self._is_over.is_set():
            self._reader.feed(data)
            self._read()
        return False, b""

    def feed_eof(self) -> None:
        """Handle the end of the connection; waiting messages are discarded."""
        self._is_over.set()
        self._forget_ahead()
        self._wake()

    # Reading.

    def _read(self) -> None:
        """Read the available frames, up to the bounds and rates."""
        self._offered = 0
        try:
            while not self._is_full():
                if (message := self._reader.next()) is None:
                    return
                self._take(*message)
        except FrameError as error:
            if self._stream is None:
                self.close_code = error.code
                self._take_last(error.code, str(error))
            else:
                self._broken = error
                self._wake()
        self._transport.pause_reading()

    def _is_full(self) -> bool:
        is_read_out = self._last is not None or (self._broken is not None and not self._is_closing)
        return self._is_held or is_read_out or self.ahead_bytes >= READ_AHEAD_BYTES

    def _take(self, opcode: int, content: Message) -> None:
        """Count a message as liveness; offer it to the taker, and keep the rest."""
        if opcode == FRAGMENTS:
            self._charge(FRAGMENT_MESSAGES * self._message_s)
            return
        self.seen_s = self._clock()
        self._charge(max(self._message_s, len(content) * self._byte_s))
        if opcode == CLOSE:
            self._take_close(cast("bytes", content))
        elif opcode == PING:
            # A peer that does not read gets an answer to its latest ping only (RFC 6455, section 5.5.3).
            if not self.is_congested():
                self._write(control_frame(PONG, cast("bytes", content)))
        elif opcode != PONG and not self._is_closing and (left := self._left_of(content)) is not None:
            self._ahead.append(left)
            self.ahead_bytes += kept_bytes(left)
            self._wake()

    def _left_of(self, message: Message) -> Message | None:
        """The rest of a message after the taker, which is called in order while the receiver waits."""
        if self._taker is None or self._ahead or self._news.done() or self._pauses:
            return message
        if self._offered == AT_ONCE or self._paid_until_s > self.seen_s + AT_ONCE * self._message_s:
            return message
        self._offered += 1
        try:
            return self._taker(message)
        except Exception as error:  # a boundary: the error concerns the receiver, not the network
            self._fault = error
            self._wake()
            return None

    def timed(self, decode: Callable[[M], T], message: M) -> T:
        """The result of ``decode`` for a message; its CPU time counts towards the peer's share."""
        began_s = time.thread_time()
        try:
            return decode(message)
        finally:
            self._charge((time.thread_time() - began_s) / CPU_SHARE)

    def _charge(self, cost_s: float) -> None:
        """Pause reading from a peer that is too far ahead of its rates."""
        now_s = self._clock()
        self._paid_until_s = max(self._paid_until_s, now_s) + cost_s
        if self._paid_until_s > now_s + AHEAD_S and not self._is_held:
            self._is_held = True
            self._pauses += 1
            self._loop.call_later(HOLD_S, self._let_go)

    def _let_go(self) -> None:
        self._is_held = False
        self._pauses -= 1
        self.seen_s = self._clock()
        self._go_on()

    def _go_on(self) -> None:
        """Resume reading if there is room, starting with buffered frames."""
        if not self.has_ended and not self._is_full():
            self._read()
            if not self._is_full():
                self._transport.resume_reading()

    def _take_close(self, payload: bytes) -> None:
        code = read_close(payload)
        if not self._is_closing:
            self.close_code = code
        self._take_last(CloseCode.NORMAL, "")

    def _take_last(self, code: int, reason: str) -> None:
        """Stop reading; the answering close frame is sent after all earlier messages are received."""
        self._last = (code, reason)
        if self._is_closing:
            self._is_over.set()
        self._wake()

    def _finish(self, code: int, reason: str) -> None:
        """Answer the peer's close, and end the connection."""
        self._is_over.set()
        self._send_farewell(code, reason)
        self._is_closing = True
        self._transport.close()
        # A closed transport still sends its buffer, and TLS negotiates the end, but the peer may be gone.
        self._loop.call_later(self._limits.close_timeout_s, self._abort)

    def _send_farewell(self, code: int, reason: str) -> None:
        self._write(close_frame(code, reason) if self._stream is None else self._stream.farewell)

    def _wake(self) -> None:
        if not self._news.done():
            self._news.set_result(None)

    @contextlib.contextmanager
    def taking_at_once(self, taker: Taker) -> Iterator[None]:
        """For the block, offer ``taker`` each message that arrives while a receiver waits.

        A message that it takes does not wake a task, which would cost more than processing a packet of Opus.
        """
        self._taker = taker
        try:
            yield
        finally:
            self._taker = None  # or the cycle of a call and its socket stays in memory

    async def receive(self) -> bytes | None:
        """The next binary message; None once the connection is over. Text messages are ignored."""
        while isinstance(message := await self.receive_any(), str):
            pass
        return message

    async def receive_any(self) -> Message | None:
        """The next message, binary or text; None once the connection is over.

        Raises:
            FrameError: the peer of a TCP connection sends invalid data.
        """
        while not self._ahead and self._fault is None and not self._is_last_received():
            if self._broken is not None:
                raise self._broken
            self._news = self._loop.create_future()
            await self._news
        if self.has_ended or self._is_closing:
            self._forget_ahead()  # or it would all be processed at once
            return None
        if self._fault is not None:
            fault, self._fault = self._fault, None
            try:
                raise fault
            finally:
                del fault  # its traceback references this frame
        message = self._ahead.popleft()
        was_full = self.ahead_bytes >= READ_AHEAD_BYTES
        self.ahead_bytes -= kept_bytes(message)
        if was_full:
            self._go_on()
        return message

    def interrupt(self, error: Exception) -> None:
        """Raise ``error`` in the receiver, before any other message."""
        self._fault = error
        self._wake()

    def unread(self, message: Message) -> None:
        """Put a received message back, as the next one."""
        self._ahead.appendleft(message)
        self.ahead_bytes += kept_bytes(message)

    def _is_last_received(self) -> bool:
        """Whether the connection is over; a peer that has closed it gets its answer."""
        if self._last is not None and not self._is_closing:
            self._finish(*self._last)
        return self.has_ended or self._is_closing

    def _abort(self) -> None:
        """Cut the connection, if it still exists."""
        # A TLS transport of older Pythons (3.11.2) fails here when its connection is gone already.
        with contextlib.suppress(AttributeError):
            self._transport.abort()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Stop reading for the block; the peer's silence is not counted."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self.seen_s = self._clock()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Mark a request as in progress for the block."""
        self.idle_since_s = None
        try:
            yield
        finally:
            self.idle_since_s = self._clock()

    @property
    def is_paused(self) -> bool:
        """Whether the server has paused reading."""
        return self._pauses > 0

    @property
    def has_ended(self) -> bool:
        """Whether no further message can be received."""
        return self._is_over.is_set() or self._transport.is_closing()

    async def wait_for(self, room: asyncio.Event) -> None:
        """Wait until ``room`` is set, or an interruption, or the peer has disconnected.

        A disconnect may follow messages for which there is no room. Therefore up to ``READ_AHEAD_BYTES`` and
        one message are read ahead, and the connection is checked every ``LOOK_S`` seconds.
        """
        has_room: asyncio.Future[Any] = asyncio.ensure_future(room.wait())
        try:
            async with self.paused():
                while not (has_room.done() or self._fault or self._has_left()):
                    self._news = self._loop.create_future()
                    await asyncio.wait(
                        [has_room, self._news], timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
                    )
        finally:
            has_room.cancel()

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work``; an interruption, or the end of the connection, cancels it."""
        task, is_over = asyncio.ensure_future(work), asyncio.Event()
        task.add_done_callback(lambda _: is_over.set())
        try:
            await self.wait_for(is_over)
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def until_read(self) -> None:
        """Wait until the peer has read enough for an answer, or has disconnected.

        Raises:
            SessionTimeoutError: it reads nothing for ``liveness_timeout_s``.
        """
        limit_s = self._limits.liveness_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while self.is_congested() and not self._has_left():  # noqa: ASYNC110 (no event for either)
                    await asyncio.sleep(RECHECK_S)
        except TimeoutError:
            raise SessionTimeoutError(f"the client has read nothing for {limit_s:g} s") from None

    def _has_left(self) -> bool:
        """Whether the peer has disconnected, even if earlier messages are not yet received."""
        if self._last is not None:
            self._forget_ahead()
            return self._is_last_received()
        if self._is_over.is_set():
            return True
        if not self._transport.is_closing() and not peer_has_ended(self._transport):
            return False
        self._forget_ahead()
        self._transport.abort()
        return True

    def _forget_ahead(self) -> None:
        self._ahead.clear()
        self.ahead_bytes = 0

    def silent_s(self) -> float:
        """Seconds since the peer last sent anything; 0 while reading is paused, or if the protocol has no
        pings.
        """
        return 0.0 if self.is_paused or self._stream is not None else self._clock() - self.seen_s

    @property
    def was_cut(self) -> bool:
        """Whether the connection ended without a close, or with the announcement that the peer resumes."""
        return self.has_ended and (self._last is None or self.close_code == COMING_BACK)

    def cut(self) -> None:
        """End the connection at once, as a network failure does."""
        self._is_over.set()
        self._forget_ahead()
        self._wake()
        self._abort()

    def send(self, messages: Sequence[Message]) -> None:
        """Write messages to the network at once; after the end of the connection they are discarded."""
        if self._stream is not None:
            self._write(b"".join(it if isinstance(it, bytes) else it.encode() for it in messages))
            return
        parts: list[bytes] = []
        for message in messages:
            first, payload = FINAL | BINARY, message
            if isinstance(payload, str):
                first, payload = FINAL | TEXT, payload.encode(errors="replace")
            size = len(payload)
            if size <= SHORT_BYTES:
                parts.append(bytes((first, size)))
            elif size < 1 << 16:
                parts.append(bytes((first, 126)) + size.to_bytes(2, "big"))
            else:
                parts.append(bytes((first, 127)) + size.to_bytes(8, "big"))
            parts.append(payload)
        self._write(b"".join(parts))

    def _write(self, frames: bytes) -> None:
        if frames and not self._is_closing and not self._transport.is_closing():
            self._transport.write(frames)

    def ping(self) -> None:
        """Send a ping."""
        if self._stream is None:
            self._write(control_frame(PING))

    def is_congested(self) -> bool:
        """Whether more than ``max_unsent_bytes`` are unsent: the peer reads too slowly, or not at all."""
        is_congested = self.unsent_bytes > self._limits.max_unsent_bytes
        if is_congested and self._stall_start_s is None:
            self._stall_start_s = self._clock()
        elif not is_congested and self._stall_start_s is not None:
            self._last_stall_s = (self._stall_start_s, self._clock())
            self._stall_start_s = None
        return is_congested

    @property
    def has_unsent(self) -> bool:
        """Whether any bytes are unsent; a close may lose them."""
        return self.unsent_bytes > 0

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait to be sent; 0 once the connection is closing."""
        # asyncio's TLS transport fails when its buffer is read after its end.
        return 0 if self._transport.is_closing() else self._transport.get_write_buffer_size()

    def stalled_s(self, since_s: float) -> float:
        """Seconds by which the peer's slow reading delayed data that was ready at ``since_s``."""
        start_s, end_s = self._last_stall_s
        return max(0.0, end_s - max(start_s, since_s))

    async def close(self, code: int, reason: str) -> None:
        """Close with a code and a reason, after all data written before.

        The peer answers when it has read the close; its messages until then are discarded. A peer that does
        not answer in time is cut off.
        """
        if self._is_closing or (self.keeps_open and code == CloseCode.NORMAL):
            return
        self._send_farewell(code, reason)
        if self._stream is not None and not self._transport.is_closing():
            self._transport.write_eof()
        self._is_closing = True
        self.close_code = code
        self._forget_ahead()
        self._wake()
        self._go_on()
        if self._last is not None:
            self._is_over.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.close_timeout_s):
                await self._is_over.wait()
        if self._is_over.is_set() and not self.has_unsent:
            self._transport.close()
        else:
            self._transport.abort()
