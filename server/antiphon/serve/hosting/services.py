"""The services that request handlers share, made once by :func:`antiphon.serve.hosting.app.build_app`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from antiphon.config import ServerConfig
from antiphon.engine.trace import Tracer
from antiphon.errors import UnknownModelError
from antiphon.log import Log, SparseLog
from antiphon.metrics import MetricFamilies
from antiphon.models.spec import LIVE_KINDS, PipelineKind
from antiphon.serve.access.callers import Access, Caller
from antiphon.serve.hosting.canary_router import CanaryRouter
from antiphon.serve.hosting.event_loop import LoopLag, Reading
from antiphon.serve.hosting.front_end_links import FrontEndLinks
from antiphon.serve.hosting.peers import Peers
from antiphon.serve.hosting.served import MAX_SHOWN_CHARS, Models, ServedModel
from antiphon.serve.hosting.turns import Turns
from antiphon.serve.hosting.uploads import Helper, Uploads
from antiphon.serve.media.recording import CallRecorder
from antiphon.serve.operator.metrics import ServeMetrics
from antiphon.serve.operator.status import ServerStatus
from antiphon.serve.transport.socket import Socket


@dataclass(slots=True)
class Services:
    """The parts of one running server.

    ``metrics`` counts events before a model is found. ``calls`` are the active calls of all models, each an
    :class:`antiphon.serve.calls.call.Call`; that module imports this one. ``answers`` counts the text answers
    that agents are writing. ``changed`` is set when a call or such an answer has ended. ``waiting`` are
    connections that may have no call. ``provoked`` is the log for lines that callers can cause at will.
    ``arrivals`` are calls that arrive from other workers. ``begin_drain`` drains the server, or one engine by
    its device, and moves the calls to an address. ``canary`` is set while two versions of a model are on
    trial. ``agents`` are the voice agents by name, each an :class:`antiphon.serve.calls.agent.AgentParts`,
    whose module also imports this one. ``peers`` are the calls by WebRTC, if the server accepts any.
    ``links`` lead to other front ends, if there are any.
    """

    config: ServerConfig
    models: Models
    access: Access
    families: MetricFamilies
    metrics: ServeMetrics
    turns: Turns
    helper: Helper
    lag: LoopLag
    status: ServerStatus
    clock: Callable[[], float]
    log: Log
    provoked: SparseLog
    uploads: Uploads
    tracer: Tracer | None = None
    recorder: CallRecorder | None = None
    calls: set[Any] = field(default_factory=set)
    waiting: set[Socket] = field(default_factory=set)
    answers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    reading: Reading = field(default_factory=Reading)
    arrivals: int = 0
    begin_drain: Callable[[str, str], None] = field(default=lambda _target, _engine: None)
    canary: CanaryRouter | None = None
    agents: Mapping[str, Any] = field(default_factory=dict)
    peers: Peers | None = None
    links: FrontEndLinks | None = None

    def model_for(
        self,
        name: str | None,
        caller: Caller,
        kinds: Collection[PipelineKind] = tuple(PipelineKind),
        *,
        resumes: bool = False,
    ) -> ServedModel:
        """The model that answers a call: like :meth:`Models.find`, in the version chosen for the call.

        Raises:
            UnknownModelError: there is no model with that name and these kinds.
        """
        model = self.models.find(name, kinds)
        return model if self.canary is None else self.canary.choose(model, caller, resumes=resumes)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Count a text answer of an agent for the block, so that a drain waits for its end."""
        self.answers += 1
        try:
            yield
        finally:
            self.answers -= 1
            self.changed.set()

    def agent_for(self, name: str | None, *, is_needed: bool = False) -> Any:
        """The agent of this name; without a name, the first agent if neither a duplex model nor a codec is
        served, otherwise None.

        With ``is_needed`` and without a name, the first agent even if there is a full-duplex model.

        Raises:
            UnknownModelError: an agent is needed and does not exist.
        """
        if name is None and (is_needed or self.models.default_of(LIVE_KINDS) is None):
            found = next(iter(self.agents.values()), None)
        else:
            found = None if name is None else self.agents.get(name)
        if found is None and is_needed:
            what = "no agent here" if name is None else f"no agent {name[:MAX_SHOWN_CHARS]!r} here"
            raise UnknownModelError(
                f"{what}; there is: {', '.join(self.agents) or 'none'}", known=[*self.agents]
            )
        return found


SERVICES = web.AppKey("services", Services)
