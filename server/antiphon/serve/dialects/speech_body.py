"""Speech as the body of an HTTP answer: a growing file, or events with pieces of it."""

from __future__ import annotations

from antiphon.audio.codecs import CODECS
from antiphon.audio.pcm import FloatArray
from antiphon.audio.tempo import Tempo
from antiphon.protocol import speech_request


class SpeechBody:
    """One body of speech, made frame by frame on the event loop; a frame takes less than 1 ms."""

    def __init__(
        self,
        codec: str,
        sample_rate: int,
        *,
        speed: float = 1.0,
        is_sse: bool = False,
    ) -> None:
        """Begin a file; with ``is_sse`` it is sent in events.

        Raises:
            AudioError: a speed out of range.
        """
        self.content_type = speech_request.EVENTS if is_sse else CODECS[codec].content_type
        self.is_sse = is_sse
        self._tempo = None if speed == 1.0 else Tempo(speed, sample_rate)
        self._file = CODECS[codec].encoder(sample_rate, sample_rate)

    def feed(self, pcm: FloatArray) -> bytes:
        """Add one frame, float32 ``[N]``; returns its bytes, possibly none yet.

        Raises:
            AudioError: the model's samples cannot be encoded.
        """
        return self._framed(self._file.encode(pcm if self._tempo is None else self._tempo.feed(pcm)))

    def finish(self, words: int, unspoken: int, frames: int) -> bytes:
        """The end of the body, after ``words`` spoken words, ``unspoken`` unspoken ones, and ``frames``
        frames of 80 ms.

        Raises:
            AudioError: as :meth:`feed`; with another speed some frames are encoded only at the end.
        """
        rest = [] if self._tempo is None else self._file.encode(self._tempo.finish())
        data = self._framed(rest + self._file.finish())
        return data + speech_request.audio_done(words, unspoken, frames) if self.is_sse else data

    def close(self) -> None:
        """Free native memory."""
        self._file.close()

    def _framed(self, payloads: list[bytes]) -> bytes:
        data = b"".join(payloads)
        return speech_request.audio_delta(data) if self.is_sse and data else data
