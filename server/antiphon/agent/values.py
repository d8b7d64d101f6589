"""The requests of a client's protocol to an agent, and the agent's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from antiphon.agent.history import HistoryEntry
from antiphon.agent.turns import TurnRules
from antiphon.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of an agent for a call; audio above ``level_dbfs`` is speech.

    ``tools`` and ``tool_choice`` are in the text model's format. Without ``has_sound`` replies are text only.
    """

    instructions: str = ""
    max_tokens: int = 400
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    has_sound: bool = True
    turns: TurnRules = field(default_factory=TurnRules)
    level_dbfs: float = -45.0


# Requests of a client.


@dataclass(frozen=True, slots=True)
class Configure:
    """Use these settings from now on."""

    settings: AgentSettings


@dataclass(frozen=True, slots=True)
class EndTurn:
    """End the caller's turn, which gets the id ``item``."""

    item: str


@dataclass(frozen=True, slots=True)
class ForgetTurn:
    """Ignore the caller's speech since the last turn."""


@dataclass(frozen=True, slots=True)
class AskReply:
    """Request a reply now, with its own ``settings``; ``tag`` is the requester's name for it.

    ``entries``, if given, replace the history; each is an entry, or the name of an entry of the history. A
    reply that ``is_apart`` is not added to the history.
    """

    settings: AgentSettings
    entries: Sequence[str | HistoryEntry] | None = None
    is_apart: bool = False
    tag: Any = None


@dataclass(frozen=True, slots=True)
class CancelReply:
    """End the current reply."""


@dataclass(frozen=True, slots=True)
class PutEntry:
    """Add an entry to the history; ``after`` as in :meth:`antiphon.agent.history.History.put`."""

    item: str
    entry: HistoryEntry
    after: str | None = None


@dataclass(frozen=True, slots=True)
class RemoveEntry:
    """Delete an entry of the history."""

    item: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """The client played a reply's sound only up to this position."""

    item: str
    heard_ms: int


@dataclass(frozen=True, slots=True)
class ReplaySound:
    """The client has a new connection, and gets the last ``seconds`` seconds of the reply ``item`` again.

    ``lost_ms`` is the begin and the end of the part that the client never gets.
    """

    seconds: float
    item: str
    lost_ms: tuple[int, int] = (0, 0)


AgentRequest: TypeAlias = (
    Configure
    | EndTurn
    | ForgetTurn
    | AskReply
    | CancelReply
    | PutEntry
    | RemoveEntry
    | Truncate
    | ReplaySound
)


# Events of an agent.


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The caller's turn, with the id ``item``, began at ``ms`` of the caller's audio."""

    item: str
    ms: int


@dataclass(frozen=True, slots=True)
class TurnStopped:
    """The caller's turn ended at ``ms`` of the caller's audio; if no speech was detected, ``ms`` is the time
    at which the client ended it.
    """

    ms: int


@dataclass(frozen=True, slots=True)
class WordHeard:
    """A word of the caller, and its position in the caller's audio."""

    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class AudioHeard:
    """The number of further samples of the caller's audio that were processed, at the recogniser's rate."""

    samples: int


@dataclass(frozen=True, slots=True)
class TurnWritten:
    """All words of the oldest turn are transcribed."""


@dataclass(frozen=True, slots=True)
class ReplyBegan:
    """A reply began: to the request ``asked``, or to a turn if ``asked`` is None."""

    asked: AskReply | None


@dataclass(frozen=True, slots=True)
class ReplyWritten:
    """The text of a reply was written, with a space after each word; ``is_whole`` marks the last words."""

    text: str
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class ReplyText:
    """More of the spoken text, with the spaces between words.

    In a reply with sound, this event comes when the text is played: the text belongs to the last
    ``length_ms`` of the sound sent before the event.
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
    """The reply calls a tool. :class:`PutEntry` adds the tool's output, and :class:`AskReply` requests a
    reply to the output.

    ``pieces`` together are the arguments, in the text model's own form.
    """

    item: str
    call_id: str
    name: str
    pieces: Sequence[str]


@dataclass(frozen=True, slots=True)
class ReplyOver:
    """The reply is over: complete, or cut by the caller, by the client, at a limit or by an ``error``."""

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
