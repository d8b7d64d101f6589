"""The conversation of a call for a text model: limited in tokens; words that were not played are deleted."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

MAX_ENTRIES: Final = 1000
"""Maximum number of entries, more than a model's context holds. Above it the oldest entries are dropped,
system texts last.
"""

MAX_CHARS: Final = 1_048_576
"""Maximum number of characters of all entries; above it the oldest entries are dropped."""

BYTES_A_TOKEN: Final = 3
TOKENS_A_MESSAGE: Final = 4
"""Bytes per token, a low estimate for English; the text model's own tokenizer is not available here."""


class Role(StrEnum):
    """The kind of an entry: its author, or its part in a tool call."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    CALL = "call"  # the assistant calls a tool
    OUTPUT = "output"  # the output of a tool


@dataclass(slots=True)
class HistoryEntry:
    """One entry of a :class:`History`. A reply has its ``words``, each with its begin and its end in the
    sound, in milliseconds.

    ``lost`` lists the begin and end of each part of the sound that did not reach the client. An entry for a
    tool call has ``call_id`` and ``name``, and its ``text`` is the arguments.
    """

    role: Role
    text: str = ""
    words: list[tuple[str, int, int]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    call_id: str = ""
    name: str = ""

    @property
    def shown(self) -> str:
        """The entry's text as the text model gets it."""
        return " ".join(filter(None, (self.text, *(word for word, _, _ in self.words))))

    @property
    def tokens(self) -> int:
        """The entry's estimated number of tokens."""
        return TOKENS_A_MESSAGE + len((self.shown + self.name).encode()) // BYTES_A_TOKEN

    def add_word(self, word: str, start_ms: int, end_ms: int) -> None:
        """Add the next word of a reply, unless a part of its sound is lost."""
        if not any(begin_ms < end_ms and start_ms < until_ms for begin_ms, until_ms in self.lost):
            self.words.append((word, start_ms, end_ms))

    def lose(self, begin_ms: int, end_ms: int) -> None:
        """Mark a part of a reply's sound as lost, and delete the words that overlap it."""
        if begin_ms < end_ms:
            self.lost.append((begin_ms, end_ms))
            self.words = [it for it in self.words if it[2] <= begin_ms or end_ms <= it[1]]


class History:
    """The entries of one call by name, in order; the text model gets the latest entries, up to ``max_tokens``
    tokens.
    """

    def __init__(self, max_tokens: int) -> None:
        """Start without entries."""
        self._max_tokens = max_tokens
        self._entries: OrderedDict[str, HistoryEntry] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        """Whether an entry has this name."""
        return name in self._entries

    def __getitem__(self, name: str) -> HistoryEntry:
        """The entry of this name."""
        return self._entries[name]

    def put(self, name: str, entry: HistoryEntry, *, after: str | None = None) -> None:
        """Add an entry after the entry called ``after``; None means at the end, "" at the start."""
        self._entries[name] = entry
        self._entries.move_to_end(name)
        if after is not None and (not after or after in self._entries):
            names = list(self._entries)[:-1]
            for later in names[names.index(after) + 1 if after else 0 :]:
                self._entries.move_to_end(later)
        chars = sum(len(it.shown) for it in self._entries.values())
        while len(self._entries) > 1 and (len(self._entries) > MAX_ENTRIES or chars > MAX_CHARS):
            others = (at for at, it in self._entries.items() if it.role is not Role.SYSTEM and at != name)
            gone = self._entries.pop(next(others, next(iter(self._entries))))
            chars -= len(gone.shown)

    def remove(self, name: str) -> None:
        """Delete the entry of this name, if there is one."""
        self._entries.pop(name, None)

    def cut(self, name: str, heard_ms: int) -> None:
        """Delete the words of a reply that end after ``heard_ms``, and the whole reply if no word is left."""
        entry = self._entries.get(name)
        if entry is None or entry.role is not Role.ASSISTANT:
            return
        entry.words = [it for it in entry.words if it[2] <= heard_ms]
        if not entry.shown:
            del self._entries[name]

    def messages(self, instructions: str, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Messages for a text model: ``instructions``, then as many of the latest entries as fit.

        The latest system texts use up to half of the tokens, whatever their age. The last system text and the
        last other entry are kept whatever their length. A tool call is included only once it has its output.
        With ``names`` only these entries are included.
        """
        chosen = [it for name, it in self._entries.items() if names is None or name in names]
        outputs = {it.call_id: it for it in chosen if it.role is Role.OUTPUT}
        read: list[tuple[HistoryEntry, ...]] = []
        for entry in chosen:
            if entry.role is Role.CALL and entry.call_id in outputs:
                read.append((entry, outputs[entry.call_id]))
            elif entry.role not in (Role.CALL, Role.OUTPUT) and entry.shown:
                read.append((entry,))
        first = [(HistoryEntry(Role.SYSTEM, instructions),)] if instructions else []
        left = self._max_tokens - _tokens(first)
        texts = _latest([it for it in read if it[0].role is Role.SYSTEM], left // 2)
        others = _latest([it for it in read if it[0].role is not Role.SYSTEM], left - _tokens(texts))
        kept = set(map(id, (*texts, *others)))
        return _as_messages([*first, *(it for it in read if id(it) in kept)])


def _latest(groups: Sequence[tuple[HistoryEntry, ...]], tokens: int) -> list[tuple[HistoryEntry, ...]]:
    """The latest of these groups that fit into ``tokens``, and the very last at any length."""
    kept: list[tuple[HistoryEntry, ...]] = []
    for group in reversed(groups):
        tokens -= _tokens([group])
        if kept and tokens < 0:
            break
        kept.append(group)
    return kept


def _tokens(groups: Sequence[tuple[HistoryEntry, ...]]) -> int:
    return sum(entry.tokens for group in groups for entry in group)


def _as_messages(groups: Sequence[tuple[HistoryEntry, ...]]) -> list[dict[str, Any]]:
    """Each entry as a message; adjacent calls are one message, before their outputs."""
    messages: list[dict[str, Any]] = []
    for role, those in itertools.groupby(groups, lambda group: group[0].role):
        if role is Role.CALL:
            calls = list(those)
            asked = {"role": "assistant", "content": None, "tool_calls": [_call(call) for call, _ in calls]}
            answers = [{"role": "tool", "tool_call_id": it.call_id, "content": it.text} for _, it in calls]
            messages += [asked, *answers]
        else:
            messages += [{"role": role.value, "content": entry.shown} for (entry,) in those]
    return messages


def _call(entry: HistoryEntry) -> Mapping[str, Any]:
    function = {"name": entry.name, "arguments": entry.text}
    return {"id": entry.call_id, "type": "function", "function": function}
