"""Receives the messages of one ``/api/chat`` session. Sans I/O: bytes and times in, records out."""

from __future__ import annotations

from antiphon.errors import ProtocolError
from antiphon.protocol import events, moshi
from antiphon.protocol.chat import AudioFormat
from antiphon_client.encoding import FRAME_SAMPLES, SAMPLE_RATE
from antiphon_client.record import FrameRecorder
from antiphon_client.replies import ReplyMeter


class ChatReceiver:
    """State of one session's received messages: admission, replies, text and the server's own counts.

    ``ready_s`` is the time at which the server admitted the session: the time of its ``ready`` event, or of a
    stock server's handshake. ``error`` is the server's last error message. ``payloads`` is the received
    audio, in order, if it is to be kept.
    """

    def __init__(
        self, audio_format: AudioFormat, *, is_extended: bool, delay_frames: int, keeps_audio: bool
    ) -> None:
        """Start without messages; the server stamps replies and sends events, unless it is a stock server."""
        self.recorder = FrameRecorder(frame_samples=FRAME_SAMPLES, delay_frames=delay_frames)
        self.ready_s: float | None = None
        self.has_handshake = False
        self.error = ""
        self.payloads: list[bytes] = []
        self.text = ""
        self.bytes_in = 0
        self.interruptions = 0
        self.server_late = 0
        self.server_dropped = 0
        self._is_extended = is_extended
        self._keeps_audio = keeps_audio
        self._meter = ReplyMeter(audio_format)

    @property
    def is_answered(self) -> bool:
        """Whether the last sent frame has its complete reply, or no frame was sent."""
        return self.recorder.is_answered or not self.recorder.frames_sent

    def word_latencies_ms(self) -> tuple[float, ...]:
        """Empty, because a conversation has no word times."""
        return ()

    def hear(self, data: bytes, now_s: float) -> None:
        """Process one binary message that arrived now.

        Raises:
            ProtocolError: the message is unknown, or the server's frames are not 80 ms.
            AudioError: its audio is not in the session's format.
        """
        self.bytes_in += len(data)
        match moshi.decode(data):
            case moshi.StampedAudio(frame, step_ms, wait_ms, payload):
                samples = self._meter.samples(payload)
                self.recorder.replied(frame, samples, now_s, step_ms=step_ms, wait_ms=wait_ms)
                self._keep(payload)
            case moshi.Audio(payload):
                samples = self._meter.samples(payload)
                if samples:  # header pages of an Ogg stream contain no audio
                    self.recorder.heard(samples, now_s)
                self._keep(payload)
            case moshi.Text(text) | moshi.ColouredText(_, text):
                self.text += text
            case moshi.Event() as event:
                self._handle_event(event, now_s)
            case moshi.Error(words):
                self.error = words
            case moshi.Handshake():
                self.has_handshake = True
                if not self._is_extended:
                    self._enter(now_s)

    def _keep(self, payload: bytes) -> None:
        if self._keeps_audio:
            self.payloads.append(payload)

    def _enter(self, now_s: float) -> None:
        if self.ready_s is None:
            self.ready_s = now_s

    def _handle_event(self, event: moshi.Event, now_s: float) -> None:
        if event.type not in events.EVENT_KINDS:
            return  # an event of a newer server: the probe needs none of its fields
        events.check_event(event, sender=events.Sender.SERVER)
        match event.type:
            case "ready":
                samples, rate = event.fields["frame_samples"], event.fields["sample_rate"]
                if (samples, rate) != (FRAME_SAMPLES, SAMPLE_RATE):
                    raise ProtocolError(
                        f"frames of {samples} samples at {rate} Hz, "
                        f"this client needs {FRAME_SAMPLES} at {SAMPLE_RATE} Hz"
                    )
                self._enter(now_s)
            case "interrupted":
                self.interruptions += 1
                self.recorder.interrupted(event.fields["at_frame"])
            case "stats":
                self.server_late = event.fields["late"]
                self.server_dropped = event.fields["dropped"]
            case "error":
                self.error = event.fields["message"]
