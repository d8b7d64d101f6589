"""Values between a call and its dialect: how the call is held, and what its client may be told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.models.sampling import SamplingParameters
from antiphon.serve.calls.resume import ResumedCall


@dataclass(frozen=True, slots=True)
class Policy:
    """How a call of this protocol is held.

    ``is_live``: what one side cannot take in time gives way; else nothing is dropped. ``awaits`` names the
    input in errors. ``expects_input``: the first input has to come within the limit of a handshake; else the
    client asks for its microphone first. ``has_answers``: messages have answers, so that all but audio wait
    while the client does not read. ``hears``: the dialect follows what the participant hears. ``at_once`` is
    the first byte of messages that are followed where they are read.
    """

    is_live: bool = True
    awaits: str = "audio"
    expects_input: bool = True
    has_answers: bool = False
    hears: bool = False
    at_once: bytes = b""


@dataclass(frozen=True, slots=True)
class HelloFacts:
    """What a client may be told when its call begins.

    ``terms`` say how to resume it, None where that cannot be. ``resumed`` is set where it goes on with a call
    of another connection, whose next input frame is ``next_frame``.
    """

    session: str
    parameters: SamplingParameters
    now_s: float
    is_recorded: bool = False
    terms: Mapping[str, Any] | None = None
    resumed: ResumedCall | None = None
    next_frame: int = 0
