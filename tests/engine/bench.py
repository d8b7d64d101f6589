"""An engine on fakes, ticked by hand, and what goes in and comes out of its sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from prometheus_client import CollectorRegistry

from antiphon.backends.base import (
    BackendInfo,
    FloatArray,
    TextEntry,
)
from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.handing_over import HandOverPlan
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.trace import Tracer
from antiphon.errors import AntiphonError
from antiphon.ipc.session import Session
from antiphon.ipc.values import FrameReply
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from tests.engine.fakes import FRAME, MODEL, FakeBackend, FakeClock, fake_spec


class Bench:
    """An engine on fakes, ticked by hand."""

    def __init__(
        self,
        backend: FakeBackend | None = None,
        *,
        config: EngineConfig | None = None,
        clock: FakeClock | None = None,
        tracer: Tracer | None = None,
        hand_over: Callable[[BackendInfo], HandOverPlan] | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.backend = backend or FakeBackend()
        self.registry = CollectorRegistry()
        self.losses: list[AntiphonError] = []
        self.engine = Engine(
            self.backend,
            config or EngineConfig(),
            clock=self.clock,
            metrics=EngineMetrics(self.registry, model=MODEL),
            on_lost=self.losses.append,
            tracer=tracer,
            hand_over=hand_over,
        )
        self.engine.prepare()
        self.tick = self.engine.loop.tick_once

    def submit(
        self,
        *,
        wait_s: float = 0.0,
        seed: int = 0,
        notify: Callable[[], None] = lambda: None,
        prompt: Prompt | None = None,
    ) -> Session:
        return self.engine.submit(
            SamplingParameters(text_seed=seed), wait_s=wait_s, notify=notify, prompt=prompt
        )

    def push(self, session: Session, *values: float) -> None:
        """Push whole frames, each filled with one value."""
        session.push(frames(*values), self.clock())

    def ticks(self) -> int:
        """Tick until nothing is ready; returns how many ticks there were."""
        count = 0
        while self.tick():
            count += 1
        return count

    def read(self, name: str, **labels: str) -> float:
        """A sample of the metrics, ``antiphon_`` left out."""
        value = self.registry.get_sample_value(f"antiphon_{name}", {"model": MODEL, **labels})
        assert value is not None, name
        return value


def bench_of(kind: PipelineKind, *, input_frames: int = 8, output_frames: int = 25) -> Bench:
    config = EngineConfig(input_frames=input_frames, output_frames=output_frames)
    return Bench(FakeBackend(fake_spec(kind), 4), config=config)


def frames(*values: float) -> FloatArray:
    return np.repeat(np.asarray(values, np.float32), FRAME)


def words(*tokens: int, frames_each: int = 1) -> list[TextEntry]:
    return [TextEntry((token,), padding_frames=frames_each - 1) for token in tokens]


def heard(replies: Sequence[FrameReply]) -> list[float]:
    """The input value that each reply echoes."""
    return [float(pcm_of(reply)[0]) for reply in replies]


def pcm_of(reply: FrameReply) -> FloatArray:
    assert reply.pcm is not None
    return reply.pcm
