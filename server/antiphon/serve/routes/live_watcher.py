"""``/v1/live/sessions/{id}/attach``: another connection with the same key watches a session, and controls it.

A watcher gets the events after its attachment, and the audio of both sides as 16-bit samples at 24 kHz. Data
that it does not read in time is dropped. It may send the events of the session's own client, except for the
start and audio.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from aiohttp import web

from antiphon.errors import FieldError, SessionLimitError, UnknownSessionError
from antiphon.protocol import live
from antiphon.protocol import live_events as events
from antiphon.protocol.close_codes import CloseCode
from antiphon.protocol.event_text import MAX_EVENT_CHARS
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.call import Call
from antiphon.serve.dialects.live import LiveClient
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.routing import check_upgrade
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.upgrade import open_socket

MAX_WATCHERS: Final = 4
"""Maximum number of watchers of one session: a watcher costs as much as the session's client."""


ELSEWHERE_WORDS: Final = (
    "; this is one of several front ends, and a session is watched through the one that holds it: "
    "--front-ends 0, or 1, has only one"
)


async def handle_watcher(
    request: web.Request, services: Services, model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Serve one watcher until it or its session ends.

    Raises:
        UnknownSessionError: this key has no such session here. SessionLimitError: the session has the maximum
        number of watchers. web.HTTPUpgradeRequired: the request is not for a WebSocket.
    """
    call, dialect = find_call(services, request.match_info["id"], caller)
    if len(dialect.watchers) >= MAX_WATCHERS:
        raise SessionLimitError(f"the session has {len(dialect.watchers)} of {MAX_WATCHERS} watchers")
    watcher = LiveWatcher(call, dialect)
    # Before any wait, so that the next watcher counts this one, and the end of the session reaches it.
    dialect.watchers.add(watcher.see)
    try:
        await check_upgrade(request, model, wait_s=0.0)
        socket, response = await open_socket(
            request, services.config.limits, services.clock, max_message_bytes=MAX_EVENT_CHARS
        )
        with model.metrics.sockets.track_inprogress():
            await watcher.watch(socket)
    finally:
        dialect.watchers.discard(watcher.see)
    model.metrics.closed(socket.close_code)
    return response


def find_call(services: Services, live_id: str, caller: Caller) -> tuple[Call, LiveClient]:
    """The session of this name, if it belongs to this caller.

    Raises:
        UnknownSessionError: it does not exist, or belongs to another key.
    """
    for call in services.calls:
        dialect = call.dialect if isinstance(call, Call) and call.caller.key == caller.key else None
        if isinstance(call, Call) and isinstance(dialect, LiveClient) and dialect.live_id == live_id:
            return call, dialect
    has_others = services.config.front_ends not in (0, 1)
    raise UnknownSessionError(f"no such session here{ELSEWHERE_WORDS if has_others else ''}")


class LiveWatcher:
    """A connection that watches a session, once it has a socket."""

    def __init__(self, call: Call, dialect: LiveClient) -> None:
        """Watch ``call``."""
        self._call, self._dialect = call, dialect
        self._socket: Socket | None = None
        self._events = 0
        self._is_over = False
        self._ending: asyncio.Task[None] | None = None

    async def watch(self, socket: Socket) -> None:
        """Send the session's events over ``socket``, and carry out the watcher's events, until one side
        ends.
        """
        self._socket = socket
        if self._is_over:
            self._end(socket)
        try:
            while (message := await socket.receive_any()) is not None:
                try:
                    event = socket.timed(partial(live.decode, has_text=self._dialect.has_text), message)
                    await self._follow(event, socket)
                except FieldError as error:
                    self.see(events.error_of(error))
                await asyncio.sleep(0)
        finally:
            if self._ending is not None:
                await self._ending

    def see(self, event: events.ServerEvent | None) -> None:
        """Send an event, or drop it if the peer reads too slowly; None ends the connection."""
        socket = self._socket
        if event is None:
            self._is_over = True
            if socket is not None:
                self._end(socket)
        elif socket is not None and not socket.is_congested():
            self._events += 1
            socket.send((events.encode(event, f"event_{self._events}"),))

    def _end(self, socket: Socket) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(socket.close(CloseCode.NORMAL, "done"))

    async def _follow(self, event: live.ClientEvent, socket: Socket) -> None:
        if isinstance(event, live.Start | live.ResumeSession | live.AcknowledgeEvents | live.AppendAudio):
            raise FieldError(
                "type is not for a connection that is attached",
                param="type",
                code="unsupported_event",
                event_id=event.event_id,
            )
        await self._call.exchange.obey(self._dialect.obey(event), socket)
