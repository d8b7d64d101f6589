"""One WebSocket, seen from a session: messages in, frames out, and every wait bounded.

aiohttp upgrades and parses. Ours are the rules: the peer must show a sign of life, unless we are the ones
who do not read; messages are read no faster than a rate; what is written and not taken by the network is
counted in bytes; a close waits for the peer's answer, which aiohttp's does not while somebody else reads.
aiohttp's heartbeat is off, because it closes a socket that we paused ourselves, and so is compression, which
would cost more than it saves on Opus.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from aiohttp import WebSocketError, WSMessage, WSMsgType, web

from antiphon.config import Limits
from antiphon.serve.access.keys import chosen_subprotocol
from antiphon.serve.transport.connection import bound_kernel_buffer, has_ended
from antiphon.serve.transport.frames import CLOSE, PING, PONG, frame

READ_AHEAD_BYTES: Final = 1_048_576
"""As large as the largest message: minutes of Opus, an hour's text, nine seconds of msgpack's numbers."""

MESSAGE_BYTES: Final = 256
"""What a message takes in memory besides its content, at most: many small ones count as well."""

LOOK_S: Final = 0.25
"""How often a connection that is not read is looked at: its row is free within a second."""

MAX_REASON_BYTES = 123
"""A close frame holds 125 bytes (RFC 6455, section 5.5), two of which are the code."""


class Socket:
    """An upgraded WebSocket. Only the event loop touches it."""

    def __init__(
        self,
        ws: web.WebSocketResponse,
        transport: asyncio.Transport,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        """Wrap ``ws`` after its upgrade; :meth:`open` does both."""
        self._ws = ws
        self._transport = transport
        self._limits = limits
        self._clock = clock
        self._message_s = 1.0 / limits.max_messages_per_s
        self._paid_until_s = 0.0
        self._pauses = 0
        self._ahead: deque[bytes | str] = deque()
        self._reading: asyncio.Task[bytes | str | None] | None = None
        self.ahead_bytes = 0
        self._is_closing = False
        self._is_reading = False
        self._is_over = asyncio.Event()
        self._stall_start_s: float | None = None
        self._last_stall_s = (0.0, 0.0)
        self.seen_s = clock()
        self.close_code: int | None = None

    @classmethod
    async def open(
        cls,
        request: web.Request,
        limits: Limits,
        clock: Callable[[], float],
        *,
        max_message_bytes: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Socket:
        """Upgrade a request. ``max_message_bytes`` stands for the limit of that name, where it is given.

        ``headers`` are further ones of the answer.

        Raises:
            ConnectionResetError: the peer left meanwhile.
        """
        ws = web.WebSocketResponse(
            protocols=_protocols(request),
            timeout=limits.close_timeout_s,
            autoping=False,
            autoclose=False,
            heartbeat=None,
            compress=False,
            max_msg_size=max_message_bytes or limits.max_message_bytes,
        )
        ws.headers.update(headers or {})
        await ws.prepare(request)
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the peer left during the upgrade")
        bound_kernel_buffer(transport, limits.max_unsent_bytes)
        return cls(ws, transport, limits, clock)

    @property
    def response(self) -> web.WebSocketResponse:
        """What the request handler returns to aiohttp."""
        return self._ws

    async def receive(self) -> bytes | None:
        """The next binary message; None once the connection is over. Text messages are passed over."""
        while isinstance(message := await self.receive_any(), str):
            pass
        return message

    async def receive_any(self) -> bytes | str | None:
        """The next message, binary or text; None once the connection is over."""
        if self.has_ended:
            self._forget_ahead()  # else it would all be worked off at once: nothing waits for room any more
        if self._ahead:
            message = self._ahead.popleft()
            self.ahead_bytes -= _kept_bytes(message)
            return message
        if self._reading is not None:
            reading, self._reading = self._reading, None
            return await reading
        return await self._receive()

    async def _receive(self) -> bytes | str | None:
        """The next message from the network."""
        if self._is_over.is_set():
            return None
        if self._is_reading:
            return None  # our close does, for the peer's answer; nothing else counts any more
        self._is_reading = True
        try:
            while True:
                message = await self._ws.receive()
                kind = message.type
                if self._transport.is_closing():
                    break  # the peer is gone: what it had sent before concerns nobody
                if self._is_too_fast():
                    async with self.paused():
                        await asyncio.sleep(0.5)
                if kind in (WSMsgType.BINARY, WSMsgType.TEXT):
                    if not self._is_closing:
                        return cast("bytes | str", message.data)
                elif kind is WSMsgType.PING:
                    self._pong(message.data)
                elif kind is not WSMsgType.PONG:
                    break
        finally:
            self._is_reading = False
        self._end(message)
        return None

    def _is_too_fast(self) -> bool:
        """Count a message, and whether the peer is a second's worth ahead of the rate."""
        self.seen_s = now_s = self._clock()
        self._paid_until_s = max(self._paid_until_s, now_s) + self._message_s
        return self._paid_until_s > now_s + 1.0

    def _pong(self, data: bytes) -> None:
        # To one who does not read, the latest ping may be answered alone (RFC 6455, section 5.5.3).
        if not self.is_congested():
            self.write(frame(data, PONG))

    def _end(self, last: WSMessage) -> None:
        """The connection is over; a peer that has closed it gets its answer."""
        self._is_over.set()
        if self._is_closing:
            return  # aiohttp's word is the peer's answer to ours
        # What breaks the protocol aiohttp has closed itself, and then it only knows that nobody answered.
        is_broken = isinstance(last.data, WebSocketError)
        self.close_code = last.data.code if is_broken else self._ws.close_code
        self.write(close_frame(1000, ""))
        self._is_closing = True
        self._transport.close()
        # Closed, it still tries to send what it holds, and TLS to agree on the end; the peer may be gone.
        asyncio.get_running_loop().call_later(self._limits.close_timeout_s, self._abort)

    def _abort(self) -> None:
        """Cut the connection, if it is still there."""
        # A TLS transport of older Pythons (3.11.2) fails here when its connection is gone already.
        with contextlib.suppress(AttributeError):
            self._transport.abort()

    @contextlib.asynccontextmanager
    async def paused(self) -> Any:
        """While this lasts we do not read, so the peer's silence says nothing about it."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self.seen_s = self._clock()

    @property
    def is_paused(self) -> bool:
        """Whether we keep the peer waiting."""
        return self._pauses > 0

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is received."""
        return self._is_over.is_set() or self._transport.is_closing()

    async def wait_for(self, room: asyncio.Event) -> None:
        """Wait until ``room`` is set, or the peer has left: then nothing more is received.

        Its leaving may lie behind what there is no room for. So that is read ahead, at most
        ``READ_AHEAD_BYTES`` and a message; and the connection is looked at, every ``LOOK_S``.
        """
        has_room = asyncio.ensure_future(room.wait())
        try:
            async with self.paused():
                while not has_room.done() and not self._is_over.is_set() and not self._has_left():
                    if self._reading is None and self.ahead_bytes < READ_AHEAD_BYTES:
                        self._reading = asyncio.ensure_future(self._receive())
                    waits = [has_room] if self._reading is None else [has_room, self._reading]
                    await asyncio.wait(waits, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                    self._keep_ahead()
        except asyncio.CancelledError:
            if self._reading is not None:
                self._reading.cancel()
            raise
        finally:
            has_room.cancel()

    def _keep_ahead(self) -> None:
        """Keep a message that was read ahead; with the last one, forget them all."""
        if self._reading is None or not self._reading.done():
            return
        message, self._reading = self._reading.result(), None
        if message is None:
            self._forget_ahead()
        else:
            self._ahead.append(message)
            self.ahead_bytes += _kept_bytes(message)

    def _has_left(self) -> bool:
        """Whether the peer's side of the connection has ended, though we have not read that far."""
        if not self._transport.is_closing() and not has_ended(self._transport):
            return False
        self._forget_ahead()
        self._transport.abort()
        return True

    def _forget_ahead(self) -> None:
        self._ahead.clear()
        self.ahead_bytes = 0

    def silent_s(self) -> float:
        """Seconds since the last sign of life; 0 while reading is paused."""
        return 0.0 if self.is_paused else self._clock() - self.seen_s

    def write(self, frames: bytes) -> None:
        """Hand whole frames to the network; after the connection is over they go nowhere."""
        if not self._is_closing and not self._transport.is_closing():
            self._transport.write(frames)

    def ping(self) -> None:
        """Ask for a sign of life."""
        self.write(frame(b"", PING))

    def is_congested(self) -> bool:
        """Whether more is unsent than ``max_unsent_bytes``: the peer reads too slowly, or not at all."""
        is_congested = self._unsent_bytes() > self._limits.max_unsent_bytes
        if is_congested and self._stall_start_s is None:
            self._stall_start_s = self._clock()
        elif not is_congested and self._stall_start_s is not None:
            self._last_stall_s = (self._stall_start_s, self._clock())
            self._stall_start_s = None
        return is_congested

    @property
    def has_unsent(self) -> bool:
        """Whether anything is written and not yet taken by the network; a close may cut it off."""
        return self._unsent_bytes() > 0

    def _unsent_bytes(self) -> int:
        # asyncio's TLS transport fails when it is asked for its buffer after its end.
        return 0 if self._transport.is_closing() else self._transport.get_write_buffer_size()

    def stalled_s(self, since_s: float) -> float:
        """How long the peer's last congestion kept something waiting that was ready at ``since_s``."""
        start_s, end_s = self._last_stall_s
        return max(0.0, end_s - max(start_s, since_s))

    async def close(self, code: int, reason: str) -> None:
        """Close with a code and a reason, behind all that was written before.

        The peer answers when it has read that far, and what it still sends until then concerns nobody. One
        that does not answer in time is cut off.
        """
        if self._is_closing:
            return
        self.write(close_frame(code, reason))
        self._is_closing = True
        self.close_code = code
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.close_timeout_s):
                if self._is_reading:
                    await self._is_over.wait()
                else:
                    await self._receive()
        if self._is_over.is_set() and not self.has_unsent:
            self._transport.close()
        else:
            self._transport.abort()


def is_upgrade(request: web.Request) -> bool:
    """Whether a request asks for a WebSocket."""
    return bool(web.WebSocketResponse(protocols=_protocols(request)).can_prepare(request))


def _protocols(request: web.Request) -> tuple[str, ...]:
    """The subprotocol to select, for aiohttp, which logs what was offered where it can select none."""
    chosen = chosen_subprotocol(request.headers)
    return () if chosen is None else (chosen,)


def close_frame(code: int, reason: str) -> bytes:
    """A close frame: what does not fit into it of the reason is left out."""
    # An error may quote what UTF-8 cannot hold: a file's name with half of a surrogate pair.
    words = reason.encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore").encode()
    return frame(code.to_bytes(2, "big") + words, CLOSE)


def _kept_bytes(message: bytes | str) -> int:
    return len(message) * (1 if isinstance(message, bytes) else 4) + MESSAGE_BYTES
