"""What a session brings, until the engine thread takes it, one frame or word at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from antiphon.audio.ring import FrameRing
from antiphon.backends.base import FloatArray, TextEntry
from antiphon.engine.batch import Batch, RowOutput
from antiphon.errors import SessionError


class Inbox(Protocol):
    """Bounded input of one session. Not thread-safe: the session holds its lock.

    ``dropped`` and ``flushed`` count whole frames that were thrown away, for lack of room or on request.
    ``is_finished``: no more input comes.
    """

    dropped: int
    flushed: int
    is_finished: bool

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`take_into` has something for the next tick."""
        ...

    @property
    def is_spent(self) -> bool:
        """Whether the input was finished and all of it has been taken and answered."""
        ...

    @property
    def waiting(self) -> int:
        """Whole frames (tts: words) waiting."""
        ...

    @property
    def next_frame(self) -> int:
        """The index of the first frame (tts: step) that has not come yet."""
        ...

    def take_into(self, batch: Batch, row: int) -> tuple[int, float]:
        """Put one frame into the batch; returns its index and the time it was complete."""
        ...

    def settle(self, output: RowOutput) -> None:
        """Learn what the tick made of what was taken."""
        ...

    def finish(self) -> None:
        """No more input comes."""
        ...

    def clear(self) -> None:
        """Throw away what waits."""
        ...


class AudioInbox:
    """Audio in whole frames, at most ``capacity_frames`` of them.

    A live one (``is_live``) drops its oldest when full; another refuses what does not fit.
    """

    def __init__(self, frame_samples: int, capacity_frames: int, *, is_live: bool) -> None:
        """Allocate the ring."""
        self._ring = FrameRing(frame_samples, capacity_frames)
        self._is_live = is_live
        self.is_finished = False
        self.dropped = 0
        self.flushed = 0

    @property
    def is_ready(self) -> bool:
        """Whether a whole frame waits."""
        return self._ring.ready_frames > 0

    @property
    def is_spent(self) -> bool:
        """Whether the input was finished and all of it was taken."""
        return self.is_finished and not self._ring.ready_frames

    @property
    def waiting(self) -> int:
        """Whole frames waiting."""
        return self._ring.ready_frames

    @property
    def next_frame(self) -> int:
        """The index of the first frame that has not come yet."""
        return self._ring.next_index + self._ring.ready_frames

    @property
    def free_samples(self) -> int:
        """Samples that fit without dropping any."""
        return self._ring.free_samples

    @property
    def unfinished(self) -> FloatArray:
        """A copy of the samples after the last whole frame, fewer than a frame of them."""
        return self._ring.unfinished()

    def push(self, pcm: FloatArray, received_s: float) -> list[float]:
        """Add samples, float32 ``[N]``; returns when each whole frame dropped for them had been complete.

        Raises:
            SessionError: they do not fit and nothing may be dropped.
        """
        if not self._is_live and pcm.shape[0] > self._ring.free_samples:
            raise SessionError(
                f"{pcm.shape[0]} samples were pushed where {self._ring.free_samples} fit; "
                "read room_samples first, nothing is dropped here"
            )
        waiting_s = self._ring.complete_times() if pcm.shape[0] > self._ring.free_samples else []
        dropped = self._ring.push(pcm, received_s)
        self.dropped += dropped
        return [*waiting_s[:dropped], *[received_s] * (dropped - len(waiting_s))]

    def take_into(self, batch: Batch, row: int) -> tuple[int, float]:
        """Copy the oldest frame into the batch; returns its index and the time it was complete."""
        taken = self._ring.pop_into(batch.pcm_row(row))
        assert taken is not None
        return taken

    def settle(self, output: RowOutput) -> None:
        """Nothing to learn: a frame is gone once it was taken."""

    def finish(self) -> None:
        """Pad the tail to a whole frame; what is pushed from now on is ignored by the session."""
        if not self.is_finished:
            self.is_finished = True
            self._ring.finish()

    def clear(self) -> None:
        """Throw away all audio that waits."""
        self.flushed += self._ring.clear()


OFFERED_WORDS = 8
"""Words a row is offered in one tick: more than it can begin in one."""


class TextInbox:
    """Words to be spoken, at most ``capacity`` of them; the one it ends with comes on top.

    A tts row is offered the next few words at every tick and takes them, all or none, when it has room for
    them (``consumed``); several, since it may look ahead, and since it may take more than one step in a tick.
    With no word left the row still speaks what it took: it is ticked on for as long as it consumes
    (thinks) or emits, and rests when it does neither, until the next word comes.
    """

    def __init__(self, capacity: int) -> None:
        """Start with nothing to say."""
        self._capacity = capacity
        self._entries: deque[tuple[TextEntry, float]] = deque()
        self._offered: list[tuple[TextEntry, float]] = []
        self._is_busy = False
        self.is_finished = False
        self._has_spoken_all = False
        self._steps = 0
        self._last_received_s = 0.0
        self.dropped = 0
        self.flushed = 0

    @property
    def is_ready(self) -> bool:
        """Whether a word waits or the row has something left to say."""
        return not self._has_spoken_all and (bool(self._entries) or self._is_busy)

    @property
    def is_spent(self) -> bool:
        """Whether the row has spoken everything."""
        return self.is_finished and self._has_spoken_all

    @property
    def waiting(self) -> int:
        """Words waiting."""
        return len(self._entries)

    @property
    def next_frame(self) -> int:
        """The index of the next step."""
        return self._steps

    @property
    def free_entries(self) -> int:
        """Words that fit."""
        return max(0, self._capacity - len(self._entries))

    def push(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words.

        Raises:
            SessionError: they do not fit.
        """
        if len(entries) > self.free_entries:
            raise SessionError(
                f"{len(entries)} words were pushed where {self.free_entries} of {self._capacity} fit; "
                "read room_entries first, nothing is dropped here"
            )
        self._entries.extend((entry, received_s) for entry in entries)
        self.is_finished = self.is_finished or any(entry.is_last for entry in entries)

    def take_into(self, batch: Batch, row: int) -> tuple[int, float]:
        """Offer the oldest words to the row; they stay here until the row has taken them."""
        self._offered = list(islice(self._entries, OFFERED_WORDS))
        batch.put_text(row, tuple(entry for entry, _ in self._offered))
        if self._offered:
            self._last_received_s = self._offered[-1][1]
        self._steps += 1
        return self._steps - 1, self._last_received_s

    def settle(self, output: RowOutput) -> None:
        """Let go of the words the row took, and note whether the row goes on without others."""
        # A flush may have emptied the queue, and new words come, while the step ran.
        for offered in self._offered if output.consumed else ():
            if self._entries and self._entries[0] is offered:
                self._entries.popleft()
        self._is_busy = output.consumed or output.emitted
        self._has_spoken_all = output.finished

    def finish(self) -> None:
        """Say that the text ends here, unless the last word said so itself."""
        if not self.is_finished:
            self.is_finished = True
            self._entries.append((TextEntry((), is_last=True), self._last_received_s))

    def clear(self) -> None:
        """Throw away the words that wait; the end, once said, stays said."""
        last = [item for item in self._entries if item[0].is_last]
        self._entries.clear()
        self._entries.extend((TextEntry((), is_last=True), received_s) for _, received_s in last)
