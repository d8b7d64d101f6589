"""Recordings of calls with the callers' consent: off by default, written on a separate thread, limited in
length and size.

Each recorded call has two files of 16-bit WAV in the folder, its input and its output, named by time and
session. One thread writes all files. Pieces that arrive faster than it can write are dropped and counted: a
slow disk must not affect calls. After every piece a file is a complete recording. A call is recorded up to a
limit, and the same thread removes the oldest files above the folder's limits on size and age.
"""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from antiphon.audio.pcm import FloatArray, s16le_from_float
from antiphon.config import ServerConfig
from antiphon.errors import ConfigError
from antiphon.log import Log
from antiphon.serve.media.retention import STAMP, RecordingLimits, sweep

QUEUE_PIECES = 1024
"""Maximum number of pieces that wait for the disk: half a minute of one call, half a second of a hundred."""

SWEEP_S = 60.0
"""Seconds between sweeps of old recordings while no recording begins or ends."""

_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")


class CallRecording:
    """The two files of a call, named after ``stem``; the methods are thread-safe and never block."""

    def __init__(self, recorder: CallRecorder, stem: str, max_samples: int) -> None:
        """Start without files; the first piece creates a file."""
        self._recorder = recorder
        self.stem = stem
        self._left = {"heard": max_samples, "said": max_samples}

    def heard(self, pcm: FloatArray) -> None:
        """Record the caller's audio: float32 ``[samples]``."""
        self._keep("heard", pcm)

    def said(self, pcm: FloatArray) -> None:
        """Record the model's audio: float32 ``[samples]``."""
        self._keep("said", pcm)

    def close(self) -> None:
        """End the recording of the call."""
        for side in self._left:
            self._recorder.put(f"{self.stem}-{side}.wav", None)

    def _keep(self, side: str, pcm: FloatArray) -> None:
        piece = pcm[: self._left[side]]
        if piece.size:
            self._left[side] -= piece.size
            self._recorder.put(f"{self.stem}-{side}.wav", s16le_from_float(piece))


class CallRecorder:
    """Writes recordings into a folder, on a separate thread.

    ``left_out`` counts dropped pieces, ``failed_files`` abandoned files.
    """

    def __init__(
        self,
        folder: Path,
        limits: RecordingLimits,
        *,
        sample_rate: int = 24000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start the thread, and make the folder if necessary.

        Raises:
            ConfigError: the folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".writable").touch()
            (folder / ".writable").unlink()
        except OSError as error:
            raise ConfigError(f"cannot record into {folder}: {error.strerror}") from error
        self._folder = folder
        self._limits = limits
        self._sample_rate = sample_rate
        self._clock = clock
        self._queue: queue.Queue[tuple[str, bytes | None] | None] = queue.Queue(QUEUE_PIECES)
        self._files: dict[str, FileIO] = {}
        self._failed: set[str] = set()
        self._ends: deque[str] = deque()
        self.left_out = self.failed_files = 0
        self._thread = threading.Thread(target=self._run, name="antiphon-recorder", daemon=True)
        self._thread.start()

    def open(self, session: str) -> CallRecording:
        """Begin a recording of the session with this id."""
        stamp = time.strftime(STAMP, time.gmtime(self._clock()))
        return CallRecording(self, f"{stamp}-{session}", round(self._limits.max_s * self._sample_rate))

    def put(self, name: str, data: bytes | None) -> None:
        """Queue bytes for a file, or its end (None); if the disk is slow, bytes are dropped, but never an
        end.
        """
        try:
            self._queue.put_nowait((name, data))
        except queue.Full:
            if data is None:
                self._ends.append(name)
            else:
                self.left_out += 1

    def close(self) -> None:
        """Write the queue, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        self._try_to_sweep()
        while True:
            try:
                item = self._queue.get(timeout=SWEEP_S)
            except queue.Empty:
                self._try_to_sweep()
                continue
            if item is None:
                break
            self._try_to_write(*item)
            while self._ends and self._queue.empty():  # pieces before an end have been written
                self._try_to_write(self._ends.popleft(), None)
        for name in tuple(self._files):
            self._try_to_write(name, None)

    def _try_to_sweep(self) -> None:
        try:
            self._sweep()
        except OSError as error:
            Log(__name__).error("old recordings were not removed", reason=error.strerror)

    def _sweep(self) -> None:
        sweep(self._folder, self._limits, self._clock(), spared=self._files)

    def _try_to_write(self, name: str, data: bytes | None) -> None:
        """Write until the end; a full disk must end recordings, but neither calls nor this thread."""
        try:
            self._write(name, data)
        except OSError as error:
            Log(__name__).error("recording failed", file=name, reason=error.strerror)
            self._drop(name)
            if data is None:
                self._failed.discard(name)  # the file ends here

    def _write(self, name: str, data: bytes | None) -> None:
        if data is None:
            self._finish(name)
            return
        if name in self._failed:
            return
        file = self._files.get(name)
        if file is None:
            self._sweep()
            file = self._files[name] = _create(self._folder / name)
            _write_all(file, header(0, self._sample_rate))
        _write_all(file, data)
        self._set_length(file)

    def _finish(self, name: str) -> None:
        self._failed.discard(name)
        file = self._files.pop(name, None)
        if file is None:
            return
        file.close()
        self._try_to_sweep()

    def _drop(self, name: str) -> None:
        """Abandon a file; it is not retried, and its call continues. Its audio so far can be played."""
        self._failed.add(name)
        self.failed_files += 1
        file = self._files.pop(name, None)
        if file is None:
            return
        with contextlib.suppress(OSError), file:  # the disk may be gone, not only full
            if file.tell() > _HEADER.size:
                self._set_length(file)
            else:
                (self._folder / name).unlink()

    def _set_length(self, file: FileIO) -> None:
        """Write the number of whole samples into the header, which needs no space on the disk."""
        size = (file.tell() - _HEADER.size) // 2 * 2
        os.pwrite(file.fileno(), header(size, self._sample_rate), 0)


def _create(path: Path) -> FileIO:
    """Create a file that only its owner may read, since it contains a person's voice. It is unbuffered:
    written data are in the file.
    """
    return FileIO(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600))


def _write_all(file: FileIO, data: bytes) -> None:
    """Write all bytes: a nearly full disk accepts only some of them.

    Raises:
        OSError: not all of them could be written.
    """
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def header(data_bytes: int, sample_rate: int) -> bytes:
    """The 44 bytes of header of 16-bit mono samples (RIFF/WAVE)."""
    return _HEADER.pack(
        *(b"RIFF", 36 + data_bytes, b"WAVE", b"fmt ", 16, 1, 1),
        *(sample_rate, 2 * sample_rate, 2, 16, b"data", data_bytes),
    )


def make_recorder(config: ServerConfig) -> CallRecorder | None:
    """The recorder of a configuration, None by default.

    Raises:
        ConfigError: its folder cannot be written.
    """
    if config.record is None:
        return None
    limits = RecordingLimits(config.record_max_s, config.record_max_bytes, config.record_max_days)
    return CallRecorder(Path(config.record), limits)
