"""A front end's connection to the engines of another process: its socket, their memory, a bell."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from antiphon.errors import SessionFailedError
from antiphon.ipc import messages
from antiphon.ipc.engine_client import EngineClient, EnginePort
from antiphon.ipc.memory import MemoryLayout, hush, open_pool, ring
from antiphon.ipc.message_socket import MessageSocket, close_all


async def connect(control: socket.socket) -> Mapping[str, EnginePort]:
    """The engines at the other end of ``control`` by name, for the running event loop; it owns the socket.

    Raises:
        SessionFailedError: the engine's process ended before it said what it serves.
    """
    loop = asyncio.get_running_loop()
    hello: asyncio.Future[None] = loop.create_future()

    def handle(notice: messages.Notice, descriptors: Sequence[int]) -> None:
        if isinstance(notice, messages.Hello) and not hello.done():
            _greet(client, notice, descriptors)
            hello.set_result(None)
        else:
            close_all(descriptors)
            client.handle(notice)

    def lost(reason: str) -> None:
        if not hello.done():
            hello.set_exception(SessionFailedError(f"the engine's process did not say hello: {reason}"))
        client.lose(f"the engine's process is gone: {reason}")

    control_socket = MessageSocket(control, messages.NOTICES, handle, lost=lost)
    client = EngineClient(control_socket.send, loop)
    client.closing.callback(control_socket.close)
    await hello
    return client.engines


def _greet(client: EngineClient, hello: messages.Hello, descriptors: Sequence[int]) -> None:
    """Map the memory of engines that say hello, and hear their bell from now on."""
    bell, *shared = descriptors

    def rung() -> None:
        hush(bell)
        client.look()

    for number, facts in enumerate(hello.engines):
        memory, wake = shared[2 * number : 2 * number + 2]
        arena = open_pool(memory, MemoryLayout(facts.shape, facts.pools, facts.leases), hello.pool)
        os.close(memory)
        client.closing.callback(os.close, wake)
        client.add(facts, arena, LoopNudge(client, partial(ring, wake)).nudge)
    client.closing.callback(os.close, bell)
    client.closing.callback(client.loop.remove_reader, bell)
    client.loop.add_reader(bell, rung)


class LoopNudge:
    """Wakes an engine thread of another process, once in a turn of the event loop."""

    def __init__(self, client: EngineClient, wake: Callable[[], None]) -> None:
        """Wake by calling ``wake``."""
        self._client, self._wake = client, wake
        self._is_nudged = False

    def nudge(self) -> None:
        """Wake it at the end of this turn."""
        if not self._is_nudged:
            self._is_nudged = True
            self._client.loop.call_soon(self._nudge)

    def _nudge(self) -> None:
        self._is_nudged = False
        if not self._client.is_lost:
            self._wake()
