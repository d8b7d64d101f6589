"""Readers of messages between processes of a server: a front end's memory may be corrupt, and the engine must
continue."""

from __future__ import annotations

from collections.abc import Iterator

import msgpack
from prometheus_client import CollectorRegistry

from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.front_ends import FrontEndConnection
from antiphon.engine.loop import EventWake
from antiphon.engine.metrics import EngineMetrics
from antiphon.errors import ProtocolError
from antiphon.ipc import messages
from antiphon.models.spec import PipelineKind
from antiphon.supervisor import messages as control
from lab.tools.fuzz.target import Target, require
from tests.engine.fakes import MODEL, FakeBackend, FakeClock, fake_spec

SLOTS = 2


def messages_of(data: bytes) -> Iterator[bytes]:
    """Yield one msgpack value of an input after the other, then the remaining bytes unchanged."""
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


class Bench:
    """An engine on a fake backend, whose ticks are run directly, with one front end after the other."""

    def __init__(self, kind: PipelineKind) -> None:
        """Start without calls."""
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

    def hear(self, data: bytes) -> None:
        """Send a front end's message, run some ticks, and require that the engine has a free row."""
        front_end = FrontEndConnection([self.engine], pool=0, wake=lambda: None)
        refusal: ProtocolError | None = None
        try:
            for said in filter(None, messages_of(data)):
                front_end.handle(messages.REQUESTS.decode(said)[1], [])
        except ProtocolError as error:
            refusal = error
        self.tick()
        held = list(front_end.give_up("the input ends"))
        self.tick()
        for _, leases in held:
            self.engine.sessions.leases.let_go(leases)
        for notice in front_end.outbox:
            messages.NOTICES.encode(0, notice)
        self.clock.advance(3600.0)  # detached calls end
        self.tick()
        require(not self.engine.loop.is_lost, "the engine has ended")
        require(self.engine.health().active == 0, "a call is left behind")
        if refusal is not None:
            raise refusal

    def tick(self) -> None:
        """Run some ticks."""
        for _ in range(3):
            self.engine.loop.tick_once()
            self.clock.advance(0.08)


class Seam:
    """A :class:`Bench` for each pipeline, made on first use since an import does no work."""

    def __init__(self) -> None:
        """Start without any."""
        self._benches: list[Bench] = []

    def read(self, data: bytes) -> None:
        """Read messages from a front end to the engine; the first byte chooses the pipeline."""
        if not self._benches:
            self._benches += [Bench(kind) for kind in PipelineKind]
        self._benches[data[0] % len(self._benches) if data else 0].hear(data[1:])


def read_control(data: bytes) -> None:
    """Read a message between the supervisor and its children, write it, and require the same when it is read
    again."""
    number, message = control.CONTROL.decode(data)
    require(
        control.CONTROL.decode(control.CONTROL.encode(number, message)) == (number, message),
        "another message",
    )


TARGETS = {
    "seam": Target(Seam().read, (ProtocolError,), is_remote=False),
    "control": Target(read_control, (ProtocolError,), is_remote=False),
}
