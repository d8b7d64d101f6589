"""Engines that hand over calls to each other, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable

from antiphon.engine.call_state import StateIdentity
from antiphon.engine.handover import HandOverPlan
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionState
from tests.engine.bench import Bench
from tests.engine.fakes import FakeBackend

IDENTITY = StateIdentity("a1", "fake", "float32", "none")


PATIENCE_S = 120.0


class Worker(Bench):
    """An engine that hands its calls over to ``other``, whatever the address."""

    other: Worker
    posted: list[bytes]

    def __init__(self, name: str, *, slots: int = 4, identity: StateIdentity = IDENTITY) -> None:
        self.posted = []

        def post(target: str, data: bytes) -> str:
            assert target == "https://other"
            self.posted.append(data)
            return self.other.taken(data)

        super().__init__(
            FakeBackend(slots=slots),
            hand_over=lambda _: HandOverPlan(name, identity, post, PATIENCE_S),
        )
        self.name = name

    def taken(self, data: bytes) -> str:
        """Take a call, with the ticks that this needs."""
        future = self.engine.take_call(lambda: data)
        ticked(self, future.done)
        future.result()
        return self.name


def ticked(bench: Bench, is_so: Callable[[], bool]) -> None:
    """Tick until something holds that another thread does."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        bench.tick()
        time.sleep(0.001)


def two(**of_b: object) -> tuple[Worker, Worker]:
    a, b = Worker("a"), Worker("b", **of_b)  # type: ignore[arg-type]
    a.other = b
    return a, b


def moved(a: Worker, session: Session) -> None:
    """Let a call leave, as a drain does, until its connection hears where it is."""
    a.engine.drain("https://other")
    ticked(a, lambda: session.is_moving)
    session.detach()
    ticked(a, lambda: session.state is SessionState.CLOSED)
