"""What an agent is asked for by its client's protocol, and what it tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from antiphon.agent.history import HistoryEntry
from antiphon.agent.turns import TurnRules
from antiphon.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How a call is answered; speech is louder than ``level_dbfs``.

    ``tools`` and ``tool_choice`` are as text models read them. Without ``has_sound`` replies are text only.
    """

    instructions: str = ""
    max_tokens: int = 400
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    has_sound: bool = True
    turns: TurnRules = field(default_factory=TurnRules)
    level_dbfs: float = -45.0


# What a client asks for.


@dataclass(frozen=True, slots=True)
class Configure:
    """Use these settings from now on."""

    settings: AgentSettings


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The client says that the caller's turn is over, and calls it ``item``."""

    item: str


@dataclass(frozen=True, slots=True)
class ForgetTurn:
    """What the caller has said since the last turn is not to be read."""


@dataclass(frozen=True, slots=True)
class AskReply:
    """Reply now, with ``settings`` of its own; ``tag`` is the asker's.

    ``entries`` are read in place of the history where they are given: names of its entries, or entries. A
    reply that is ``is_apart`` leaves no trace in the history.
    """

    settings: AgentSettings
    entries: Sequence[str | HistoryEntry] | None = None
    is_apart: bool = False
    tag: Any = None


@dataclass(frozen=True, slots=True)
class CancelReply:
    """No more of the reply under way."""


@dataclass(frozen=True, slots=True)
class PutEntry:
    """Add an entry to the history; ``after`` as in :meth:`antiphon.agent.history.History.put`."""

    item: str
    entry: HistoryEntry
    after: str | None = None


@dataclass(frozen=True, slots=True)
class RemoveEntry:
    """Forget an entry."""

    item: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """The client played no more of a reply's sound than this."""

    item: str
    heard_ms: int


@dataclass(frozen=True, slots=True)
class SoundAgain:
    """The client has a new connection, and gets the last ``seconds`` of the reply's sound again."""

    seconds: float


AgentRequest: TypeAlias = (
    Configure | EndTurn | ForgetTurn | AskReply | CancelReply | PutEntry | RemoveEntry | Truncate | SoundAgain
)


# What an agent tells.


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The caller's turn, called ``item``, began at ``ms`` of its audio."""

    item: str
    ms: int


@dataclass(frozen=True, slots=True)
class TurnStopped:
    """The caller's turn is over at ``ms``; an agent that cannot hear the end says so by the client's word."""

    ms: int


@dataclass(frozen=True, slots=True)
class WordHeard:
    """A word of the caller, and its place in the caller's audio."""

    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class AudioHeard:
    """These samples more were heard, at the recogniser's rate."""

    samples: int


@dataclass(frozen=True, slots=True)
class TurnWritten:
    """The words of the oldest turn are all there."""


@dataclass(frozen=True, slots=True)
class ReplyBegan:
    """A reply to ``asked``, or to a turn where that is None."""

    asked: AskReply | None


@dataclass(frozen=True, slots=True)
class ReplyWritten:
    """Words to be spoken were written, each with a space behind it; ``is_whole``: these were the last."""

    text: str
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class ReplyText:
    """More of what is said, with the spaces between words: as it was heard, where there is sound.

    The sound before it holds it, in its last ``length_ms``.
    """

    item: str
    text: str
    length_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReplySound:
    """More sound, float32 ``[N]`` at the synthesiser's rate."""

    item: str
    pcm: FloatArray


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The reply calls a tool; :class:`PutEntry` brings its output, and :class:`AskReply` a reply to that.

    ``pieces`` together are the arguments, as the text model wrote them.
    """

    item: str
    call_id: str
    name: str
    pieces: Sequence[str]


@dataclass(frozen=True, slots=True)
class ReplyOver:
    """The reply is over: whole, or cut by the caller, by the client, at a limit or by an ``error``."""

    outcome: str
    error: Exception | None = None
    tokens_in: int = 0
    tokens_out: int = 0


COMPLETED, INTERRUPTED, CANCELLED, CUT, FAILED = "completed", "interrupted", "cancelled", "cut", "failed"

AgentNews: TypeAlias = (
    TurnStarted
    | TurnStopped
    | WordHeard
    | AudioHeard
    | TurnWritten
    | ReplyBegan
    | ReplyWritten
    | ReplyText
    | ReplySound
    | ToolCalled
    | ReplyOver
)
