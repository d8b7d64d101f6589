"""Overload policy of a session by pipeline: what is dropped when it brings more than can be taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from antiphon.models.spec import PipelineKind


@dataclass(frozen=True, slots=True)
class OverloadPolicy:
    """The overload policy of one pipeline.

    ``takes_audio``: the input is PCM, not text. ``is_live``: audio that is late is worthless, so full
    queues drop their oldest, in and out. Otherwise nothing is ever dropped: a full input queue refuses
    (the caller stops reading its socket) and a full output queue keeps the session out of the tick.
    """

    takes_audio: bool
    is_live: bool


POLICIES: Final[Mapping[PipelineKind, OverloadPolicy]] = MappingProxyType(
    {
        PipelineKind.CODEC: OverloadPolicy(takes_audio=True, is_live=True),
        PipelineKind.DUPLEX: OverloadPolicy(takes_audio=True, is_live=True),
        PipelineKind.STT: OverloadPolicy(takes_audio=True, is_live=False),
        PipelineKind.TTS: OverloadPolicy(takes_audio=False, is_live=False),
    }
)
