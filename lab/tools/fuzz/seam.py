"""What processes of a server say to each other: a front end's memory may be spoilt, the engine must go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import msgpack
from prometheus_client import CollectorRegistry

from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.front_end import FrontEndRequests
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.pools import Pools
from antiphon.engine.wake import EventWake
from antiphon.errors import ProtocolError
from antiphon.ipc import messages
from antiphon.ipc.post import Post
from antiphon.models.spec import PipelineKind
from antiphon.supervisor import messages as control
from lab.tools.fuzz.target import Target, require
from tests.engine.fakes import MODEL, FakeBackend, FakeClock, fake_spec

SLOTS = 2


class ScriptedPost:
    """:class:`antiphon.ipc.post.Post` that gives the messages of an input, and takes all that is sent."""

    def __init__(self, data: bytes) -> None:
        """Give what ``data`` holds, one msgpack value a message."""
        self._values = self._messages(data)

    @staticmethod
    def _messages(data: bytes) -> Iterator[bytes]:
        unpacker = msgpack.Unpacker()
        unpacker.feed(data)
        at = 0
        while True:
            try:
                unpacker.skip()
            except (msgpack.OutOfData, ValueError):
                yield data[at:]
                return
            yield data[at : unpacker.tell()]
            at = unpacker.tell()

    def receive(self) -> tuple[messages.Message, list[int]] | None:
        """The next message."""
        data = next(self._values, b"")
        return (messages.unpack(data), []) if data else None

    def send(self, message: messages.Message, _descriptors: Sequence[int] = ()) -> None:
        """A message to the front end: it can be packed."""
        messages.pack(message)

    def close(self) -> None:
        """Nothing is open."""


class Bench:
    """An engine on a fake backend, ticked by hand, with one front end after the other."""

    def __init__(self, kind: PipelineKind) -> None:
        """Begin without calls."""
        self.clock = FakeClock()
        self.engine = Engine(
            FakeBackend(fake_spec(kind), SLOTS),
            EngineConfig(input_frames=8, output_frames=25),
            clock=self.clock,
            metrics=EngineMetrics(CollectorRegistry(), model=MODEL),
            pools=1,
            wake=EventWake(),
        )
        self.engine.prepare()
        self.pools = Pools(MODEL, self.engine)

    def hear(self, data: bytes) -> None:
        """Let a front end say this; afterwards the engine ticks, and has a row for a caller again."""
        front_end = FrontEndRequests(0, cast("Post", ScriptedPost(data)), [self.pools])
        refusal: ProtocolError | None = None
        try:
            front_end.read()
        except ProtocolError as error:
            refusal = error
        self.tick()
        held = front_end.give_up("the input ends")[self.pools]
        self.tick()
        self.pools.let_go(held)
        self.clock.advance(3600.0)  # detached calls end
        self.tick()
        require(not self.engine.loop.is_lost, "the engine has ended")
        require(self.engine.health().active == 0, "a call is left behind")
        if refusal is not None:
            raise refusal

    def tick(self) -> None:
        """Some ticks."""
        for _ in range(3):
            self.engine.loop.tick_once()
            self.clock.advance(0.08)


class Seam:
    """The benches, made when they are first used: what is imported does nothing."""

    def __init__(self) -> None:
        """Begin without any."""
        self._benches: list[Bench] = []

    def read(self, data: bytes) -> None:
        """Messages from a front end to the engine; the first byte chooses the pipeline."""
        if not self._benches:
            self._benches += [Bench(kind) for kind in PipelineKind]
        self._benches[data[0] % len(self._benches) if data else 0].hear(data[1:])


def read_control(data: bytes) -> None:
    """A message between the supervisor and its children, which is written and read again as the same."""
    number, message = control.CONTROL.decode(data)
    require(
        control.CONTROL.decode(control.CONTROL.encode(number, message)) == (number, message),
        "another message",
    )


TARGETS = {
    "seam": Target(Seam().read, (ProtocolError,), is_remote=False),
    "control": Target(read_control, (ProtocolError,), is_remote=False),
}
