"""The client's state of a call that another connection can resume. Pure: messages in and out."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from antiphon.errors import ProtocolError
from antiphon.protocol import events, moshi, resume

ACK_S: Final = 1.0
"""How often messages are acknowledged; the server keeps what was not."""

FULL: Final = 1013
"""The front end that was asked has no place now; its call can be resumed all the same, a moment later."""


class CallThread:
    """The numbers and the token of one call. ``reason`` says why it cannot be resumed any more.

    ``worker`` has the call, where workers have names; ``is_moved`` once it went to another one, until it is
    claimed there; ``moves`` counts how often.
    """

    def __init__(self) -> None:
        """Begin before the server has said that the call can be resumed."""
        self.window_s = 0.0
        self.input_frame = 0
        self.missed_frames = 0
        self.resumptions = 0
        self.reason = ""
        self.worker = ""
        self.moves = 0
        self.is_moved = False
        self._token: bytes | None = None
        self._seq = self._frame = -1
        self._acked_s: float | None = None

    @property
    def is_resumable(self) -> bool:
        """Whether another connection may continue the call."""
        return self._token is not None and not self.reason

    def heed(self, data: bytes) -> bytes | None:
        """A message from the server, without its number; None for one that came before.

        Raises:
            ProtocolError: a number is missing, or the message means nothing.
        """
        if data[:1] == bytes((resume.NUMBERED,)):
            seq, data = resume.decode_numbered(data[1:])
            if seq <= self._seq:
                return None
            if seq > self._seq + 1:
                raise ProtocolError(
                    f"message {seq} follows message {self._seq}: {seq - self._seq - 1} are lost"
                )
            self._seq = seq
        elif data[:1] == bytes((moshi.Tag.STAMPED_AUDIO,)):
            self._frame = max(self._frame, int.from_bytes(data[1:5], "little"))
        elif data[:1] == bytes((moshi.Tag.EVENT,)):
            self._heed_event(moshi.decode(data))
        return data

    def _heed_event(self, event: moshi.Message) -> None:
        assert isinstance(event, moshi.Event)
        if event.type == "ready" and "resume" in event.fields:
            offered = event.fields["resume"]
            self._token = resume.token_of(str(offered.get("token", "")))
            self.window_s = float(offered.get("window_s", 0.0))
            self.worker = str(offered.get("worker", ""))
        elif event.type == "resumed":
            events.check_event(event, sender=events.Sender.SERVER)
            self._token = resume.token_of(event.fields["token"])
            self.input_frame = event.fields["input_frame"]
            self.missed_frames += event.fields["missed_frames"]
            self.resumptions += 1
            self.worker = str(event.fields.get("worker", ""))
            self._acked_s = None
        elif event.type == "moved":
            self.worker = str(event.fields.get("worker", ""))
            self.moves += 1
            self.is_moved = True
        elif event.type == "resume_failed":
            self.reason = str(event.fields.get("reason", "unknown"))
        elif event.type == "replaced" or (event.type == "error" and event.fields.get("code") != FULL):
            self.reason = event.type

    def ack(self, now_s: float) -> bytes | None:
        """What is to be acknowledged now, if it is time; at once on a connection that resumed the call."""
        if self._token is None or (self._acked_s is not None and now_s < self._acked_s + ACK_S):
            return None
        self._acked_s = now_s
        return resume.encode_ack(resume.Ack(self._seq, self._frame))

    def claim(self, input_frame: int) -> bytes:
        """The first message of another connection; ``input_frame`` is the first that can still be sent.

        Raises:
            ProtocolError: the call cannot be resumed.
        """
        if self._token is None:
            raise ProtocolError("the server has not said that this call can be resumed")
        self.is_moved = False
        return resume.encode_claim(resume.Claim(self._token, self._seq, self._frame, input_frame))

    def resuming_url(self, url: str) -> str:
        """The address that resumes the call, of the one that began it."""
        worker = f"&worker={quote(self.worker)}" if self.worker else ""
        return url.replace("resume=1", "resume=again") + worker
