"""Children for the supervisor's tests: real processes without a model, with given behaviour.

``python stub.py engine|front-end WORDS DESCRIPTOR PARENT``. A front end greets each connection with its
number and its process, holds it until the caller closes, and counts it as work.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from antiphon.ipc.message_socket import MessageSocket
from antiphon.supervisor import messages
from antiphon.supervisor.answers import read_registry
from antiphon.supervisor.child import control_socket
from antiphon.supervisor.messages import CONTROL, ControlReply, Message


class Stub:
    """What both kinds do."""

    def __init__(self, words: str, control: socket.socket) -> None:
        self.words = set(words.split(","))
        self.registry = CollectorRegistry()
        self.done = asyncio.Event()
        self.number = -1
        self.peer = MessageSocket(control, CONTROL, self.hear, lost=lambda _: self.done.set())

    def hear(self, message: Message, descriptors: Sequence[int]) -> ControlReply:
        match message:
            case messages.Begin():
                self.number = message.number
                self.begin(descriptors)
            case messages.Ping():
                return messages.Pong(0.001 * self.number, is_stuck=f"stuck={self.number}" in self.words)
            case messages.Leave() if "stay" not in self.words:
                self.done.set()
            case messages.Question():
                return messages.Body(self.answer(message.what))
            case _:
                return self.more(message, descriptors)
        return None

    def begin(self, descriptors: Sequence[int]) -> None:
        if "fail" in self.words:
            self.peer.send(messages.Failed("the stub was asked to fail"))
            self.done.set()
        elif (mark := self.argument("once")) and not self.is_first(mark):
            self.peer.send(messages.Failed("the stub was asked to begin once"))
            self.done.set()
        elif "die" in self.words:
            os._exit(3)
        else:
            self.peer.send(messages.Ready((f"stub {self.number}",)))

    def argument(self, name: str) -> str:
        """What follows ``name=`` among the words; "" where it is not there."""
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")), "")

    def is_first(self, mark: str) -> bool:
        """Whether no stub of this number has made its file beside ``mark``."""
        with contextlib.suppress(FileExistsError):
            Path(f"{mark}-{self.number}").touch(exist_ok=False)
            return True
        return False

    def more(self, message: Message, descriptors: Sequence[int]) -> ControlReply:
        return None

    def answer(self, what: str) -> bytes:
        if what == "trace":
            return json.dumps({"traceEvents": [], "otherData": {"left_out": 0}}).encode()
        return read_registry(self.registry)


class Engine(Stub):
    """Knows its front ends: a byte on a link comes back, and the end of a link is told by its file."""

    def __init__(self, words: str, control: socket.socket) -> None:
        super().__init__(words, control)
        self.links: dict[int, socket.socket] = {}
        self.gone: list[int] = []
        self.is_lost = False
        Counter("ticks", "Ticks.", registry=self.registry).inc(7)

    def more(self, message: Message, descriptors: Sequence[int]) -> ControlReply:
        match message:
            case messages.NewFrontEnd():
                self.links[message.number] = socket.socket(fileno=descriptors[0])
                self.links[message.number].send(b"hello")
                if "traced" in self.words and message.number == 1:
                    self.peer.send(messages.Traced())
            case messages.GoneFrontEnd():
                self.gone.append(message.number)
                self.links.pop(message.number).close()
            case messages.Drain() if "lose" in self.words:
                self.peer.send(messages.Lost("the stub has no device"))
                self.is_lost = True
        return None

    def answer(self, what: str) -> bytes:
        if what == "health":
            known = {"links": sorted(self.links), "gone": self.gone, "is_lost": self.is_lost}
            return json.dumps(known).encode()
        return super().answer(what)


class FrontEnd(Stub):
    """Greets and holds connections."""

    def __init__(self, words: str, control: socket.socket) -> None:
        super().__init__(words, control)
        self.received = 0
        self.busy = 0
        self.is_draining = False
        self.closed: list[int] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.writers: list[asyncio.StreamWriter] = []
        self.greeted = Counter("greeted", "Connections greeted.", registry=self.registry)
        self.held = Gauge("held", "Connections held.", registry=self.registry)

    def begin(self, descriptors: Sequence[int]) -> None:
        with socket.socket(fileno=descriptors[0]) as link:
            link.setblocking(True)
            with contextlib.suppress(ConnectionResetError):
                assert link.recv(16) in {b"hello", b""}  # nothing comes from an engine that has ended
        super().begin(descriptors)

    def more(self, message: Message, descriptors: Sequence[int]) -> ControlReply:
        match message:
            case messages.Connection():
                self.received += 1
                self.busy += 1
                self.report()
                task = asyncio.create_task(self.hold(message.number, socket.socket(fileno=descriptors[0])))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            case messages.MakeRoom():
                for writer in self.writers[: message.count]:
                    writer.close()
                del self.writers[: message.count]
            case messages.Drain():
                self.is_draining = True
                self.report()
                loop = asyncio.get_running_loop()
                loop.call_later(message.limit_s, self.peer.send, messages.Drained())
            case messages.Cut():
                self.peer.send(messages.Drained())
        return None

    def report(self, *closed: int) -> None:
        self.held.set(self.busy)
        self.peer.send(messages.Load(self.received, self.busy, closed))
        if self.is_draining and not self.busy:
            self.peer.send(messages.Drained())

    async def hold(self, number: int, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        self.writers.append(writer)
        writer.write(f"{self.number} {os.getpid()}\n".encode())
        self.greeted.inc()
        while line := await reader.readline():
            await self.obey(line.decode().split(), writer)
        writer.close()
        self.busy -= 1
        self.report(number)

    async def obey(self, words: list[str], writer: asyncio.StreamWriter) -> None:
        match words:
            case ["block", seconds]:
                time.sleep(float(seconds))  # noqa: ASYNC251 (an event loop that stands still)
            case ["take", lease, key, limit]:
                taken = await self.peer.ask(messages.Take(int(lease), key, int(limit), "a", 0))
                assert isinstance(taken, messages.Taken)
                writer.write(f"{taken.refusal or 'granted'}\n".encode())
            case ["link", front_end]:
                ours, theirs = socket.socketpair()
                with theirs:
                    self.peer.send(messages.Link(int(front_end), "192.0.2.1"), [theirs.fileno()])
                reader, link = await asyncio.open_unix_connection(sock=ours)
                writer.write(b"ended\n" if await reader.read() == b"" else b"answered\n")
                link.close()
            case ["ask", what]:
                body = await self.peer.ask(messages.Question(what))
                assert isinstance(body, messages.Body)
                writer.write(f"{len(body.data)}\n".encode() + body.data)


async def main(kind: str, words: str, *rest: str) -> None:
    stub = (Engine if kind == "engine" else FrontEnd)(words, control_socket(list(rest)))
    await stub.done.wait()
    stub.peer.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
