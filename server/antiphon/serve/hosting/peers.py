"""The calls by WebRTC of this process: their connections by name, their limit and their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from antiphon.errors import (
    ConfigError,
    DrainingError,
    MissingExtraError,
    ServerFullError,
    UnknownSessionError,
)
from antiphon.limits import Limits
from antiphon.serve.access.callers import Caller
from antiphon.serve.transport.peer import Peer


@dataclass(frozen=True, slots=True)
class PeerCall:
    """A call in progress: its connection, its caller, and its task."""

    peer: Peer
    caller: Caller
    task: asyncio.Task[None]


class Peers:
    """The WebRTC connections of this process: at most ``most`` at once."""

    def __init__(self, most: int, servers: Sequence[str], limits: Limits, clock: Callable[[], float]) -> None:
        """Prepare; ``servers`` are addresses of STUN and TURN servers, see :func:`ice_server`.

        Raises:
            MissingExtraError: the extra ``webrtc`` is not installed.
            ConfigError: the address of a server is invalid.
        """
        try:
            import aiortc
        except ImportError as error:
            raise MissingExtraError("calls by WebRTC", extra="webrtc", module="aiortc") from error
        self._rtc, self._most, self._limits, self._clock = aiortc, most, limits, clock
        self._servers = [aiortc.RTCIceServer(**ice_server(it)) for it in servers]
        self._calls: dict[str, PeerCall] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._open = 0
        self._is_closed = False

    def __len__(self) -> int:
        """The current number of connections."""
        return self._open

    @contextlib.asynccontextmanager
    async def opened(self, head: bytes) -> AsyncIterator[Peer]:
        """Open a connection for the block; ``head`` is the prefix of its messages with sound.

        Raises:
            ServerFullError: the limit of connections is reached.
            DrainingError: the server shuts down.
        """
        if self._is_closed:
            raise DrainingError("the server is shutting down")
        if self._open >= self._most:
            raise ServerFullError(f"{self._open} of {self._most} calls by WebRTC", retry_after_s=10)
        self._open += 1
        try:
            peer = Peer(self._rtc, self._servers, head, self._limits, self._clock)
            try:
                yield peer
            finally:
                await peer.end()
        finally:
            self._open -= 1

    def hold(
        self, name: str, peer: Peer, caller: Caller, work: Coroutine[Any, Any, None], held: AsyncExitStack
    ) -> None:
        """Run ``work`` with a connection, which has this name until it ends; then release ``held``."""
        task = asyncio.get_running_loop().create_task(work)
        # A task that is cancelled before its first step runs no line of ``work``.
        task.add_done_callback(lambda _: self._release(name, held))
        self._calls[name] = PeerCall(peer, caller, task)
        if self._is_closed:
            peer.cut()

    def _release(self, name: str, held: AsyncExitStack) -> None:
        del self._calls[name]
        ending = asyncio.get_running_loop().create_task(held.aclose())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def find(self, name: str, caller: Caller) -> Peer:
        """The connection of this name, if it belongs to this caller.

        Raises:
            UnknownSessionError: the connection does not exist, or belongs to another key.
        """
        call = self._calls.get(name)
        if call is None or call.caller.key != caller.key:
            raise UnknownSessionError("no such call by WebRTC here")
        return call.peer

    async def close(self) -> None:
        """End all connections, after their calls; no further ones begin."""
        self._is_closed = True
        for call in self._calls.values():
            call.peer.cut()
        while tasks := [*(call.task for call in self._calls.values()), *self._ending]:
            await asyncio.wait(tasks)


def ice_server(address: str) -> dict[str, str]:
    """A STUN or TURN server as aiortc's arguments: ``stun:HOST:PORT``, ``turn://USER:PASSWORD@HOST:PORT``.

    Raises:
        ConfigError: the address has another form.
    """
    parts = urlsplit(address.replace(":", "://", 1) if "://" not in address else address)
    has_login = parts.username is not None and parts.password is not None
    kinds = {"stun": not has_login, "turn": has_login, "turns": has_login}
    try:
        is_whole = bool(parts.hostname) and not parts.path and parts.port != 0
    except ValueError:
        is_whole = False
    if not (kinds.get(parts.scheme, False) and is_whole):
        raise ConfigError(
            f"ice_server = {parts.scheme}:{parts.hostname or ''}: expected stun:HOST:PORT or "
            "turn://USER:PASSWORD@HOST:PORT"
        )
    place = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
    query = f"?{parts.query}" if parts.query else ""
    found = {"urls": f"{parts.scheme}:{place}{query}"}
    if has_login:
        found |= {"username": unquote(parts.username or ""), "credential": unquote(parts.password or "")}
    return found
