"""What a dialect asks of its call: the closed set of actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from antiphon.audio.pcm import FloatArray
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.serve.calls.captions import Captions


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
    | Close
    | Send
)
