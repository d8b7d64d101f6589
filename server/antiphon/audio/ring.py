"""A session's input: samples in any portions in, whole frames out."""

from __future__ import annotations

import numpy as np

from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError


class FrameRing:
    """Frames of ``frame_samples`` samples, at most ``capacity_frames`` of them; for more, the oldest go.

    Frame i always is samples ``i * frame_samples`` to ``(i + 1) * frame_samples`` of all that was ever
    pushed: frames that are dropped or cleared leave a gap in the indices. Storage is allocated once. Frames
    lie at whole multiples of their size, so each is one contiguous piece. Not thread-safe.
    """

    def __init__(self, frame_samples: int, capacity_frames: int) -> None:
        """Allocate ``frame_samples * capacity_frames`` float32.

        Raises:
            AudioError: a size below 1.
        """
        if frame_samples < 1 or capacity_frames < 1:
            raise AudioError(f"a ring of {capacity_frames} frames of {frame_samples} samples holds nothing")
        self._frame_samples = frame_samples
        self._frames = np.zeros((capacity_frames, frame_samples), np.float32)
        self._samples = self._frames.reshape(-1)
        self._complete_s = np.zeros(capacity_frames)
        self._next_index = 0
        self._stored = 0
        self._received_s = 0.0

    @property
    def ready_frames(self) -> int:
        """Whole frames waiting."""
        return self._stored // self._frame_samples

    @property
    def free_samples(self) -> int:
        """Samples that can be pushed before any are dropped."""
        return self._samples.size - self._stored

    @property
    def next_index(self) -> int:
        """The index of the frame that :meth:`pop` gives next, once it is whole."""
        return self._next_index

    def complete_times(self) -> list[float]:
        """When each of the whole frames waiting was complete, oldest first."""
        rows = range(self._next_index, self._next_index + self.ready_frames)
        return [float(self._complete_s[index % len(self._frames)]) for index in rows]

    def push(self, samples: FloatArray, received_s: float) -> int:
        """Add float32 ``[N]`` received at ``received_s``; returns how many whole frames were dropped."""
        excess = samples.size - self.free_samples
        dropped = -(-excess // self._frame_samples) if excess > 0 else 0
        if dropped:
            unseen = dropped * self._frame_samples - self._stored
            self._advance(dropped)
            samples = samples[max(unseen, 0) :]
        self._received_s = received_s
        self._write(samples)
        return dropped

    def pop(self) -> tuple[int, FloatArray, float] | None:
        """The oldest whole frame as (index, float32 ``[frame_samples]``, time it was complete), or None."""
        if not self.ready_frames:
            return None
        frame = np.empty(self._frame_samples, np.float32)
        taken = self.pop_into(frame)
        return None if taken is None else (taken[0], frame, taken[1])

    def pop_into(self, out: FloatArray) -> tuple[int, float] | None:
        """Copy the oldest whole frame into ``out``; returns (index, time it was complete), or None."""
        if not self.ready_frames:
            return None
        index = self._next_index
        row = index % len(self._frames)
        out[:] = self._frames[row]
        complete_s = float(self._complete_s[row])
        self._advance(1)
        return index, complete_s

    def unfinished(self) -> FloatArray:
        """A copy of the samples after the last whole frame, float32 ``[N]``, N below ``frame_samples``."""
        row = (self._next_index + self.ready_frames) % len(self._frames)
        return self._frames[row, : self._stored % self._frame_samples].copy()

    def finish(self) -> None:
        """Fill an unfinished frame up with silence; it is complete as of the last push."""
        missing = -self._stored % self._frame_samples
        if missing:
            self._write(np.zeros(missing, np.float32))

    def clear(self) -> int:
        """Throw away the whole frames waiting and return their number.

        The samples of an unfinished frame become silence but stay, so that frame indices keep their meaning.
        """
        cleared = self.ready_frames
        self._advance(cleared)
        self._frames[self._next_index % len(self._frames), : self._stored] = 0.0
        return cleared

    def _advance(self, frames: int) -> None:
        """Forget the oldest ``frames`` frames, stored or never written."""
        self._next_index += frames
        self._stored = max(self._stored - frames * self._frame_samples, 0)

    def _write(self, samples: FloatArray) -> None:
        """Append samples that fit, and stamp the frames they complete."""
        capacity = self._samples.size
        whole = self.ready_frames
        start = (self._next_index * self._frame_samples + self._stored) % capacity
        until_end = min(capacity - start, samples.size)
        self._samples[start : start + until_end] = samples[:until_end]
        self._samples[: samples.size - until_end] = samples[until_end:]
        self._stored += samples.size
        for frame in range(self._next_index + whole, self._next_index + self.ready_frames):
            self._complete_s[frame % len(self._frames)] = self._received_s
