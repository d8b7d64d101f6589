"""The data of one lease except for its frames: parameters, a prompt, words, and requested silence.

An entry belongs to one thread at a time. The control thread makes it, and changes it while its session waits
for a row. From then on it belongs to the engine thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import islice
from typing import Final

import numpy as np

from antiphon.backends.base import FloatArray, RowSnapshot, TextEntry
from antiphon.engine.call_state import SavedState
from antiphon.ipc import messages
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

OFFERED_WORDS: Final = 8
"""Words offered to a row in one tick, more than it can begin in one tick."""


class RowAction(Enum):
    """The input of a row in a tick, and the operation on the row's state before it."""

    NONE = "none"  # the caller's audio
    RESTORE = "restore"  # the saved state is restored, then the caller's audio
    SAVE = "save"  # the state is saved, then silence
    PAD = "pad"  # more silence
    RESTORE_KEEP = "restore and keep"  # the saved state is restored and kept, then silence

    @property
    def is_padding(self) -> bool:
        """Whether the row processes flush padding."""
        return self in (RowAction.SAVE, RowAction.PAD, RowAction.RESTORE_KEEP)

    @property
    def puts_back(self) -> bool:
        """Whether the saved state is restored first."""
        return self in (RowAction.RESTORE, RowAction.RESTORE_KEEP)


class FlushPadding:
    """Silence that a row processes on a copy of its state, so that a transcript ends without more audio.

    Text lags behind audio. When a caller stops sending, a few frames of silence bring out the text of the
    last words. The caller may continue later, so the row's state is saved before the first such frame and
    restored before the next frame of the caller's audio.

    ``asked`` counts all requested frames, ``pending`` the requested frames that wait. ``kept`` is the row's
    state without the silence. If there is no such copy, the silence remains in the row, as if the caller had
    sent it. ``run`` counts how often the caller's audio ended such a silence; a reply to silence of an
    earlier run is discarded.
    """

    def __init__(self, frame_samples: int) -> None:
        """Start without padding."""
        self.kept: RowSnapshot | None = None
        self.asked = self.pending = self.run = 0
        self.received_s = 0.0
        self._tail: FloatArray = np.zeros(frame_samples, np.float32)
        self._has_tail = False
        self._is_away = False
        self._is_stale = False

    @property
    def is_busy(self) -> bool:
        """Whether silence waits, or was processed and not yet undone."""
        return self.pending > 0 or self._is_away

    @property
    def done(self) -> int:
        """The number of requested frames of silence that no longer wait."""
        return self.asked - self.pending

    def listen(self, run: int, upto: int, frames: int, tail: FloatArray, now_s: float) -> None:
        """Add ``frames`` frames of silence; the first of a run completes the caller's ``tail [n]``."""
        self.asked = upto
        if run < self.run:
            return
        self.see(run)
        if not self._is_away or self._is_stale:
            self._has_tail = True
            self._tail[:] = 0.0
            self._tail[: tail.size] = tail
        self.pending += frames
        self.received_s = now_s

    def see(self, run: int) -> None:
        """Apply the caller's count of interruptions. A new interruption drops pending silence and undoes
        processed silence.
        """
        if run > self.run:
            self.run, self.pending = run, 0
            self._is_stale = self._is_away

    def end_padding(self) -> RowAction:
        """End the padding, and return what the row does before its next tick takes the caller's audio."""
        action = RowAction.RESTORE if self._is_away else RowAction.NONE
        self._is_away = self._is_stale = False
        return action

    def take_into(self, row: FloatArray) -> tuple[RowAction, int]:
        """Write a frame of silence for the next tick to ``row [frame_samples]``; return the row's action and
        the run of the silence.

        If an interruption arrived since the tick was planned, the silence belongs to the previous run, so its
        reply is discarded.
        """
        run = self.run if self.pending else self.run - 1
        self.pending = max(0, self.pending - 1)
        row[:] = self._tail if self._has_tail else 0.0
        self._has_tail = False
        action = RowAction.PAD if self._is_away else RowAction.SAVE
        action = RowAction.RESTORE_KEEP if self._is_stale else action
        self._is_away, self._is_stale = True, False
        return action, run


class TextInbox:
    """The queue of words to be synthesised; the front end sends no more words than fit.

    At every tick a tts row is offered the next few words, and takes all of them or none. It may look ahead,
    and may take more than one step in a tick. Without new words the row synthesises the words that it took.
    It takes part in ticks while it consumes or emits, and otherwise pauses until the next word arrives.
    """

    def __init__(self) -> None:
        """Start without words."""
        self._entries: deque[tuple[TextEntry, float]] = deque()
        self._offered: list[tuple[TextEntry, float]] = []
        self.is_busy = self.has_spoken_all = self.is_finished = False
        self._last_received_s = 0.0
        self._received = self._steps = 0

    @property
    def is_ready(self) -> bool:
        """Whether a word waits or the row still emits."""
        return not self.has_spoken_all and (bool(self._entries) or self.is_busy)

    @property
    def waiting(self) -> int:
        """Number of words that wait."""
        return len(self._entries)

    @property
    def taken(self) -> int:
        """Number of words that the row took, or that were flushed."""
        return self._received - len(self._entries)

    def push(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words, which arrived at ``received_s``."""
        self._received += len(entries)
        self._entries.extend((entry, received_s) for entry in entries)
        self.is_finished = self.is_finished or any(entry.is_last for entry in entries)

    def offer(self) -> tuple[tuple[TextEntry, ...], int, float]:
        """The oldest words, which stay until the row takes them; the number of the row's step; and the time
        at which the last of these words arrived.
        """
        self._offered = list(islice(self._entries, OFFERED_WORDS))
        if self._offered:
            self._last_received_s = self._offered[-1][1]
        self._steps += 1
        return tuple(entry for entry, _ in self._offered), self._steps - 1, self._last_received_s

    def end_step(self, *, consumed: bool, emitted: bool, finished: bool) -> None:
        """Remove the words that the row took, and record whether the row continues without further words."""
        for _ in self._offered if consumed else ():
            self._entries.popleft()
        self.is_busy = consumed or emitted
        self.has_spoken_all = finished

    def finish(self) -> None:
        """End the text, unless its last word has already ended it."""
        if not self.is_finished:
            self.is_finished = True
            self._received += 1
            self._entries.append((TextEntry((), is_last=True), self._last_received_s))

    def restart(self) -> None:
        """Discard everything, including the end: a fresh row gets a new text."""
        self._entries.clear()
        self._offered = []
        self.is_busy = self.has_spoken_all = self.is_finished = False

    def clear(self) -> None:
        """Discard the waiting words; the end of the text, if sent, remains."""
        last = [item for item in self._entries if item[0].is_last]
        self._entries.clear()
        self._entries.extend((TextEntry((), is_last=True), received_s) for _, received_s in last)


class RowEntry:
    """One lease's parameters, prompt, words and silence.

    ``changes`` counts changes of the parameters, ``prompts`` is the number of the prompt, ``is_new`` is true
    while the row does not have the parameters.
    """

    def __init__(
        self, parameters: SamplingParameters, frame_samples: int, prompt: Prompt | SavedState | None = None
    ) -> None:
        """Start with the values that the session was opened with."""
        self.parameters, self.is_new, self.changes = parameters, True, 0
        self.prompt, self.prompts = prompt, 0
        self.updates = 0  # changes that the engine thread has applied
        self.padding, self.text = FlushPadding(frame_samples), TextInbox()

    def take(self, request: messages.CallRequest) -> None:
        """Apply a request of the front end."""
        match request:
            case messages.SetParameters(_, number, parameters):
                self.parameters, self.is_new = parameters, True
                self.changes = max(self.changes, number)
            case messages.Prime(_, number, prompt):
                self.prompt, self.prompts = prompt, number
            case messages.Restart(_, number, prompt):
                self.prompts, self.prompt = number, prompt
                self.text.restart()
            case messages.PushText(_, entries, received_s):
                self.text.push(entries, received_s)
            case messages.EndText():
                self.text.finish()
            case messages.ClearText():
                self.text.clear()
            case messages.FeedPadding(_, run, upto, frames, tail, now_s):
                self.padding.listen(run, upto, frames, tail, now_s)

    def new_parameters(self) -> SamplingParameters | None:
        """The parameters that the row lacks, once; None afterwards."""
        parameters = self.parameters if self.is_new else None
        self.is_new = False
        return parameters
