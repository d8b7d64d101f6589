"""What one lease has in addition to frames: parameters, a prompt, words to speak, silence to hear.

An entry belongs to one thread at a time: the control thread makes it and changes it while its session waits
for a row, and the engine thread has it from then on.
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
"""Words a row is offered in one tick: more than it can begin in one."""


class RowAction(Enum):
    """What a row hears in a tick, and what becomes of its state before that."""

    NONE = "none"  # the caller's audio
    RESTORE = "restore"  # the state that was kept is put back, then the caller's audio
    SAVE = "save"  # the state is kept, then silence
    PAD = "pad"  # more silence
    RESTORE_KEEP = "restore and keep"  # the state that was kept is put back, and kept still, then silence

    @property
    def is_padding(self) -> bool:
        """Whether the row hears flush padding."""
        return self in (RowAction.SAVE, RowAction.PAD, RowAction.RESTORE_KEEP)

    @property
    def puts_back(self) -> bool:
        """Whether the state that was kept comes back first."""
        return self in (RowAction.RESTORE, RowAction.RESTORE_KEEP)


class FlushPadding:
    """Silence that a row hears on a copy of itself, so that a transcript can be ended without its caller.

    Text lags behind audio. When a caller stops sending, a few frames of silence bring out what is heard but
    not written yet. The caller may continue later, so the row's state is kept before the first such frame and
    put back before the next frame of the caller's audio.

    ``asked`` frames of it were requested in all, of which ``pending`` are still to be heard. ``kept`` is the
    row's state without the silence; without it the silence stays in the row, as if the
    caller had sent it. ``run`` changes with every interruption, which the caller counts; a reply to silence
    of another run is void.
    """

    def __init__(self, frame_samples: int) -> None:
        """No padding is requested."""
        self.kept: RowSnapshot | None = None
        self.asked = self.pending = self.run = 0
        self.received_s = 0.0
        self._tail: FloatArray = np.zeros(frame_samples, np.float32)
        self._has_tail = False
        self._is_away = False
        self._is_stale = False

    @property
    def is_busy(self) -> bool:
        """Whether silence is to be heard, or was heard and is not undone yet."""
        return self.pending > 0 or self._is_away

    @property
    def done(self) -> int:
        """Frames of silence that were requested and wait no more."""
        return self.asked - self.pending

    def listen(self, run: int, upto: int, frames: int, tail: FloatArray, now_s: float) -> None:
        """Hear ``frames`` more frames; the first of a run ends what the caller began: its ``tail [n]``."""
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
        """What the caller counts now: if it continued, pending silence is dropped, heard silence undone."""
        if run > self.run:
            self.run, self.pending = run, 0
            self._is_stale = self._is_away

    def come_back(self) -> RowAction:
        """The next tick takes the caller's audio."""
        action = RowAction.RESTORE if self._is_away else RowAction.NONE
        self._is_away = self._is_stale = False
        return action

    def take_into(self, row: FloatArray) -> tuple[RowAction, int]:
        """The next tick takes a frame of silence, which is put into ``row [frame_samples]``; its run.

        An interruption since the tick was decided makes it silence of the run before: its reply is void.
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
    """Words to be spoken, of which the caller's half brings no more than fit.

    A tts row is offered the next few words at every tick and takes them, all or none, when it has room for
    them; several, since it may look ahead, and since it may take more than one step in a tick. With no word
    left the row still speaks what it took: it is ticked on for as long as it consumes (thinks) or emits, and
    rests when it does neither, until the next word comes.
    """

    def __init__(self) -> None:
        """Start with nothing to say."""
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
        self._received += len(entries)
        self._entries.extend((entry, received_s) for entry in entries)
        self.is_finished = self.is_finished or any(entry.is_last for entry in entries)

    def offer(self) -> tuple[tuple[TextEntry, ...], int, float]:
        """The oldest words, which stay here until the row took them; the step's index; when the last came."""
        self._offered = list(islice(self._entries, OFFERED_WORDS))
        if self._offered:
            self._last_received_s = self._offered[-1][1]
        self._steps += 1
        return tuple(entry for entry, _ in self._offered), self._steps - 1, self._last_received_s

    def end_step(self, *, consumed: bool, emitted: bool, finished: bool) -> None:
        """Let go of the words the row took, and note whether the row continues without others."""
        for _ in self._offered if consumed else ():
            self._entries.popleft()
        self.is_busy = consumed or emitted
        self.has_spoken_all = finished

    def finish(self) -> None:
        """Say that the text ends here, unless the last word said so itself."""
        if not self.is_finished:
            self.is_finished = True
            self._received += 1
            self._entries.append((TextEntry((), is_last=True), self._last_received_s))

    def restart(self) -> None:
        """Throw away everything, the end included: a fresh row gets a new text."""
        self._entries.clear()
        self._offered = []
        self.is_busy = self.has_spoken_all = self.is_finished = False

    def clear(self) -> None:
        """Throw away the words that wait; the end, once said, stays said."""
        last = [item for item in self._entries if item[0].is_last]
        self._entries.clear()
        self._entries.extend((TextEntry((), is_last=True), received_s) for _, received_s in last)


class RowEntry:
    """One lease's parameters, prompt, words and silence.

    ``changes`` counts changes of the parameters, ``prompts`` is the number of the prompt; ``is_new`` while
    the row lacks the parameters.
    """

    def __init__(
        self, parameters: SamplingParameters, frame_samples: int, prompt: Prompt | SavedState | None = None
    ) -> None:
        """Begin with what the session was opened with."""
        self.parameters, self.is_new, self.changes = parameters, True, 0
        self.prompt, self.prompts = prompt, 0
        self.updates = 0  # that the engine thread has applied
        self.padding, self.text = FlushPadding(frame_samples), TextInbox()

    def take(self, request: messages.CallRequest) -> None:
        """Do what the front end requests."""
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
            case messages.HearPadding(_, run, upto, frames, tail, now_s):
                self.padding.listen(run, upto, frames, tail, now_s)

    def new_parameters(self) -> SamplingParameters | None:
        """The parameters the row lacks, once; None while it has them."""
        parameters = self.parameters if self.is_new else None
        self.is_new = False
        return parameters
