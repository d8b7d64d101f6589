"""What request handlers share, typed: made once by :func:`antiphon.serve.app.build_app`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

from antiphon.config import ServerConfig
from antiphon.engine.engine import Engine
from antiphon.engine.trace import Tracer
from antiphon.log import Log
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon.models.tokenizer import TextTokenizer
from antiphon.serve.lanes import WorkerPool
from antiphon.serve.metrics import ServeMetrics
from antiphon.serve.voices import VoiceFolder

if TYPE_CHECKING:
    from antiphon.serve.call import Call


@dataclass(slots=True)
class Services:
    """The parts of one running server.

    ``defaults`` are the sampling parameters of callers who ask for none; ``calls`` are the conversations
    with an open socket.
    """

    config: ServerConfig
    engine: Engine
    checkpoint: Checkpoint
    tokenizer: TextTokenizer | None
    defaults: SamplingParameters
    pool: WorkerPool
    metrics: ServeMetrics
    clock: Callable[[], float]
    log: Log
    tracer: Tracer | None = None
    voices: VoiceFolder | None = None
    calls: set[Call] = field(default_factory=set)


SERVICES = web.AppKey("services", Services)
