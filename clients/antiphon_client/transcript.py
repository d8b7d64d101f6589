"""Receives the messages of one ``/api/asr-streaming`` session. No I/O: bytes and times in.

A ``Step`` answers one frame of the audio sent. Servers count steps from 1 for each session (this server) or
for all sessions together (Kyutai's), so the first step determines the start of the count. A model without
pause heads sends no steps; every frame then counts as answered when the last marker has returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from antiphon.protocol import kyutai
from antiphon_client.encoding import FRAME_SAMPLES, SAMPLE_RATE
from antiphon_client.record import FrameRecorder

LAST_MARKER: Final = 1
"""The id of the marker after the last audio."""


@dataclass(frozen=True, slots=True)
class HeardWord:
    """A word, its start in the audio sent, and its time of arrival on the client's clock."""

    text: str
    start_s: float
    heard_s: float


class TranscriptReceiver:
    """The words of one session; attributes as in :class:`antiphon_client.chat_receiver.ChatReceiver`."""

    def __init__(self) -> None:
        """Begin without words."""
        self.recorder = FrameRecorder(frame_samples=FRAME_SAMPLES, delay_frames=0)
        self.ready_s: float | None = None
        self.has_handshake = False
        self.error = ""
        self.payloads: list[bytes] = []
        self.words: list[HeardWord] = []
        self.bytes_in = 0
        self.interruptions = self.server_late = self.server_dropped = 0
        self.is_marked = False
        self._first_step: int | None = None

    @property
    def text(self) -> str:
        """The transcript so far: all words, in order."""
        return " ".join(word.text for word in self.words)

    @property
    def is_answered(self) -> bool:
        """Whether all audio has been transcribed."""
        return self.is_marked

    def hear(self, data: bytes, now_s: float) -> None:
        """Process one binary message that arrived now.

        Raises:
            ProtocolError: the message is unknown.
        """
        self.bytes_in += len(data)
        match kyutai.decode_server(data):
            case kyutai.Ready():
                self.ready_s = now_s if self.ready_s is None else self.ready_s
            case kyutai.Step(step_idx):
                self._first_step = step_idx if self._first_step is None else self._first_step
                self.recorder.answered(step_idx - self._first_step, now_s)
            case kyutai.Word(text, start_s):
                self.words.append(HeardWord(text, start_s, now_s))
            case kyutai.Marker(marker):
                self.is_marked = self.is_marked or marker == LAST_MARKER
                if marker == LAST_MARKER and self._first_step is None:
                    for frame in range(self.recorder.frames_sent):
                        self.recorder.answered(frame, now_s)
            case kyutai.Error(words):
                self.error = words

    def word_latencies_ms(self) -> tuple[float, ...]:
        """Delay from sending the start of each word to receiving it, including the model's own delay.

        A word that begins after the last whole frame is omitted.
        """
        sent_s = self.recorder.timeline().sent_s
        frame_s = FRAME_SAMPLES / SAMPLE_RATE
        return tuple(
            (word.heard_s - float(sent_s[frame])) * 1000
            for word in self.words
            if (frame := int(word.start_s / frame_s)) < sent_s.size
        )
