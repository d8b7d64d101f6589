"""Values between a call and its dialect: how the call is held, what its client may learn, and actions."""

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
    """How a call of this protocol is held.

    ``is_live``: what one side cannot take in time gives way; else nothing is dropped. ``awaits`` names the
    input in errors. ``expects_input``: the first input has to come within the limit of a handshake; else the
    client requests its microphone first. ``has_answers``: messages have answers, so that all but audio wait
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
    """What a client may learn when its call begins.

    ``terms`` say how to resume it, None where that cannot be. ``resumed`` is set where it continues a call
    of another connection, whose next input frame is ``next_frame``.
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
    """``pcm``, float32 ``[N]`` at the model's rate, of ``seconds`` that the client sent.

    ``pcm`` is empty where the model is not to hear them.
    """

    pcm: FloatArray
    seconds: float


@dataclass(frozen=True, slots=True)
class PushWords:
    """Words of the client; they are read as there is room."""

    text: str


@dataclass(frozen=True, slots=True)
class EndInput:
    """No more input comes; what is left is answered."""


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """Let the participant read a prompt before anything else, if ``make`` makes one."""

    make: Callable[[], Awaitable[Prompt | None]]


@dataclass(frozen=True, slots=True)
class Transcribe:
    """Write down what the client says from now on; ``then`` is called once there is a row for it."""

    captions: Captions
    then: Callable[[], None]


@dataclass(frozen=True, slots=True)
class ChangeParameters:
    """Use the sampling parameters that ``change`` makes of the current ones, from the next frame on."""

    change: Callable[[SamplingParameters], SamplingParameters]


@dataclass(frozen=True, slots=True)
class Flush:
    """Throw away what is queued both ways."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The client has received numbered messages up to ``seq``."""

    seq: int


@dataclass(frozen=True, slots=True)
class Instruct:
    """Ask the participant for what only its kind can do."""

    request: Any


@dataclass(frozen=True, slots=True)
class Close:
    """End the call: at once, or within ``drain_s`` once the model is silent, and not before ``lag_s``."""

    drain_s: float = 0.0
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Send:
    """Answer with an event of the dialect; ``is_optional``: a client that does not read gets none."""

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
"""What a dialect asks of its call."""
