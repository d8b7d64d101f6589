"""Values that a call and its dialect exchange: policy, start of a call, and actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from antiphon.audio.pcm import FloatArray
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.serve.calls.captions import Captions
from antiphon.serve.calls.resume import ResumedCall


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules that a protocol has for its calls.

    ``is_live``: late data are dropped; otherwise nothing is dropped. ``awaits`` is the name of the input in
    errors. ``expects_input``: the first input must arrive within the limit of a handshake; otherwise the
    client may open its microphone first. ``has_answers``: messages have answers, so all messages except audio
    wait while the client does not read. ``hears``: the dialect processes the participant's input. ``at_once``
    is the first byte of messages that are handled as soon as they are read. Unless it ``reads_on``, reading
    stops at the end of the input, because later messages belong to another call.
    """

    is_live: bool = True
    awaits: str = "audio"
    expects_input: bool = True
    has_answers: bool = False
    hears: bool = False
    at_once: bytes = b""
    reads_on: bool = True


@dataclass(frozen=True, slots=True)
class HelloFacts:
    """Facts for the client when its call begins.

    ``terms`` are the terms of resumption; None if the call cannot be resumed. ``resumed`` is set if the call
    was on another connection before; ``next_frame`` is then its next input frame.
    """

    session: str
    parameters: SamplingParameters
    now_s: float
    is_recorded: bool = False
    terms: Mapping[str, Any] | None = None
    resumed: ResumedCall | None = None
    next_frame: int = 0


@dataclass(slots=True)
class PushAudio:
    """Audio ``pcm``, float32 ``[N]`` at the model's rate, decoded from ``seconds`` seconds of the client's
    audio.

    ``pcm`` is empty if the model ignores it.
    """

    pcm: FloatArray
    seconds: float


@dataclass(frozen=True, slots=True)
class PushWords:
    """Words of the client, read as room permits."""

    text: str


@dataclass(frozen=True, slots=True)
class EndInput:
    """End the input; input that has arrived is still answered."""


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """Have the participant read a prompt before any other input, if ``make`` returns one."""

    make: Callable[[], Awaitable[Prompt | None]]


@dataclass(frozen=True, slots=True)
class Transcribe:
    """Transcribe the client's speech from now on; ``then`` is called once the recogniser has a row."""

    captions: Captions
    then: Callable[[], None]


@dataclass(frozen=True, slots=True)
class ChangeParameters:
    """Use the sampling parameters that ``change`` returns for the current ones, from the next frame on."""

    change: Callable[[SamplingParameters], SamplingParameters]


@dataclass(frozen=True, slots=True)
class Flush:
    """Discard waiting data in both directions."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The client has received numbered messages up to ``seq``."""

    seq: int


@dataclass(frozen=True, slots=True)
class Instruct:
    """Request an action that only one kind of participant has."""

    request: Any


@dataclass(frozen=True, slots=True)
class Close:
    """End the call at once, or when the model is silent, after ``drain_s`` at most and ``lag_s`` at least."""

    drain_s: float = 0.0
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Send:
    """Answer with an event of the dialect; ``is_optional``: it is dropped if the client does not read."""

    event: Any
    is_optional: bool = False


Action: TypeAlias = (
    PushAudio
    | PushWords
    | EndInput
    | ReadPrompt
    | Transcribe
    | ChangeParameters
    | Flush
    | Acknowledged
    | Instruct
    | Close
    | Send
)
"""The actions that a dialect requests of its call."""
