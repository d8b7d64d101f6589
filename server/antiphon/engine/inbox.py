"""Words that wait to be spoken, until the engine thread offers them to the row."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from antiphon.backends.base import TextEntry

OFFERED_WORDS: Final = 8
"""Words a row is offered in one tick: more than it can begin in one."""


class TextInbox:
    """Words to be spoken, of which the caller's half brings no more than fit.

    A tts row is offered the next few words at every tick and takes them, all or none, when it has room for
    them; several, since it may look ahead, and since it may take more than one step in a tick. With no word
    left the row still speaks what it took: it is ticked on for as long as it consumes (thinks) or emits, and
    rests when it does neither, until the next word comes. A tick of tts costs far more than its lock.
    """

    def __init__(self) -> None:
        """Start with nothing to say."""
        self._lock = threading.Lock()
        self._entries: deque[tuple[TextEntry, float]] = deque()
        self._offered: list[tuple[TextEntry, float]] = []
        self.is_busy = self.has_spoken_all = self.is_finished = False
        self._last_received_s = 0.0
        self._received = self._steps = 0

    @property
    def is_ready(self) -> bool:
        """Whether a word waits or the row has something left to say."""
        return not self.has_spoken_all and (bool(self._entries) or self.is_busy)

    @property
    def waiting(self) -> int:
        """Words waiting."""
        return len(self._entries)

    @property
    def taken(self) -> int:
        """Words that the row took, or that were flushed."""
        return self._received - len(self._entries)

    def push(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words."""
        with self._lock:
            self._received += len(entries)
            self._entries.extend((entry, received_s) for entry in entries)
            self.is_finished = self.is_finished or any(entry.is_last for entry in entries)

    def offer(self) -> tuple[tuple[TextEntry, ...], int, float]:
        """The oldest words, which stay here until the row took them; the step's index; when the last came."""
        with self._lock:
            self._offered = list(islice(self._entries, OFFERED_WORDS))
            if self._offered:
                self._last_received_s = self._offered[-1][1]
            self._steps += 1
            return tuple(entry for entry, _ in self._offered), self._steps - 1, self._last_received_s

    def settle(self, *, consumed: bool, emitted: bool, finished: bool) -> None:
        """Let go of the words the row took, and note whether the row goes on without others."""
        with self._lock:
            # A flush may have emptied the queue, and new words come, while the step ran.
            for offered in self._offered if consumed else ():
                if self._entries and self._entries[0] is offered:
                    self._entries.popleft()
            self.is_busy = consumed or emitted
            self.has_spoken_all = finished

    def finish(self) -> None:
        """Say that the text ends here, unless the last word said so itself."""
        with self._lock:
            if not self.is_finished:
                self.is_finished = True
                self._received += 1
                self._entries.append((TextEntry((), is_last=True), self._last_received_s))

    def clear(self) -> None:
        """Throw away the words that wait; the end, once said, stays said."""
        with self._lock:
            last = [item for item in self._entries if item[0].is_last]
            self._entries.clear()
            self._entries.extend((TextEntry((), is_last=True), received_s) for _, received_s in last)
