"""The table of kinds: the routes on which each kind of model answers.

A new protocol needs a module with its ``ROUTES``, and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from antiphon.models.spec import PipelineKind
from antiphon.serve.routes import (
    asr,
    asterisk,
    chat,
    json_speech,
    live,
    openai_speech,
    openai_transcription,
    realtime,
    telephone,
    tts,
    unmute,
    wyoming,
)
from antiphon.serve.routes.routing import Route
from antiphon.serve.routes.tcp import TcpRoute
from antiphon.tcp_port import TcpProtocol

PHONES = (*telephone.ROUTES, *asterisk.ROUTES)

ROUTES: Mapping[PipelineKind, tuple[Route, ...]] = MappingProxyType(
    {
        PipelineKind.CODEC: (*chat.ROUTES, *live.ROUTES, *realtime.TALKER_ROUTES, *PHONES),
        PipelineKind.DUPLEX: (*chat.ROUTES, *live.ROUTES, *realtime.TALKER_ROUTES, *PHONES),
        PipelineKind.STT: (
            *asr.ROUTES,
            *openai_transcription.ROUTES,
            *realtime.LISTENER_ROUTES,
            *json_speech.ASR_ROUTES,
        ),
        PipelineKind.TTS: (*tts.ROUTES, *openai_speech.ROUTES, *json_speech.TTS_ROUTES),
    }
)

AGENT_ROUTES = (unmute.REALTIME,)
"""The routes on which only voice agents answer."""

TCP_ROUTES: Mapping[TcpProtocol, TcpRoute] = MappingProxyType(
    {TcpProtocol.WYOMING: wyoming.ROUTE, TcpProtocol.AUDIOSOCKET: asterisk.AUDIOSOCKET}
)
