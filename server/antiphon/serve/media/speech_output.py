"""A caller's speech on its way out, in the format it asked for.

PCM is encoded where it stands. Opus is encoded on a codec thread, between two queues that hold no more than
the caller of :meth:`SpeechOutput.put` lets in: it asks :attr:`SpeechOutput.has_room` first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from antiphon.audio.formats import AudioEncoder
from antiphon.audio.pcm import FloatArray, f32le_from_float
from antiphon.errors import AntiphonError, SessionFailedError
from antiphon.protocol import kyutai, kyutai_tts
from antiphon.protocol.kyutai_tts import SpeechFormat, Spoken
from antiphon.serve.hosting.lanes import WorkerPool
from antiphon.serve.routes.voicing import Piece
from antiphon.serve.transport.frames import frame

MAX_WAITING: Final = 50
"""Pieces not yet encoded: four seconds of speech."""


class SpeechOutput:
    """Pieces in, WebSocket frames out, in order. ``announce`` is called when a thread has made some."""

    def __init__(self, format_: SpeechFormat, pool: WorkerPool, announce: Callable[[], None]) -> None:
        """Make an encoder, and take a place at a codec thread if it needs one."""
        self.error: AntiphonError | None = None
        self._format = format_
        self._announce = announce
        self._encoder = AudioEncoder("ogg" if format_.is_ogg else "pcm_f32le")
        self._waiting: deque[Piece | None] = deque()
        self._made: deque[bytes] = deque()
        self._is_closed = False
        self._has_ended = self._is_working = False
        self._lane = pool.thread_lane(self._turn, self._fail) if format_.is_ogg else None

    @property
    def has_room(self) -> bool:
        """Whether more should be put in."""
        return len(self._waiting) < MAX_WAITING

    @property
    def is_drained(self) -> bool:
        """Whether all that was put in has been collected, and nothing of it failed."""
        return not self._waiting and not self._is_working and not self._made and self.error is None

    def put(self, pieces: Sequence[Piece]) -> None:
        """Add what was said."""
        self._waiting.extend(pieces)
        self._work()

    def finish(self) -> None:
        """Nothing more is said; only the first time counts."""
        if not self._has_ended:
            self._has_ended = True
            self._waiting.append(None)
            self._work()

    def collect(self) -> bytes:
        """The frames that are ready."""
        frames = []
        while self._made:
            frames.append(self._made.popleft())
        return b"".join(frames)

    def close(self) -> None:
        """Do no more work; the lane's last turn releases the encoder."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._lane is None:
            self._encoder.close()
        else:
            self._lane.close()

    def _work(self) -> None:
        if self._lane is not None:
            self._lane.wake()
            return
        while self._waiting:
            self._make(self._waiting.popleft())

    def _turn(self) -> bool:
        """Encode one piece, on the thread; true when there are more."""
        if self._is_closed:
            self._encoder.close()
            return False
        if self.error is not None or not self._waiting:
            return False
        self._is_working = True
        self._make(self._waiting.popleft())
        self._is_working = False
        self._announce()
        return bool(self._waiting)

    def _make(self, piece: Piece | None) -> None:
        if isinstance(piece, Spoken):
            if self._format.is_packed:
                self._made.append(frame(kyutai_tts.encode_server(piece)))
            return
        for data in self._encode(piece):
            self._made.append(frame(data))

    def _encode(self, pcm: FloatArray | None) -> list[bytes]:
        if not self._format.is_ogg:
            if pcm is None:
                return []
            clipped = pcm.clip(-1.0, 1.0)
            return [
                kyutai.encode(kyutai.Audio(clipped)) if self._format.is_packed else f32le_from_float(clipped)
            ]
        pages = self._encoder.finish() if pcm is None else self._encoder.encode(pcm)
        return [kyutai.encode(kyutai.OggOpus(page)) if self._format.is_packed else page for page in pages]

    def _fail(self, error: Exception) -> None:
        """Keep the error that ends the session: it is ours."""
        if not isinstance(error, AntiphonError):
            error = SessionFailedError(f"the server could not encode: {type(error).__name__}: {error}")
        self.error = error
        self._is_working = False
        self._announce()
