"""The client's state of a call that another connection can resume. No I/O: messages in and out."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from antiphon.errors import ProtocolError
from antiphon.protocol import events, moshi, resume

ACK_S: Final = 1.0
"""Seconds between acknowledgements; the server keeps all messages that are not acknowledged."""

FULL: Final = 1013
"""Reason from a front end that has no free place; the call can be resumed a moment later."""


class CallThread:
    """Message numbers and resume token of one call; ``reason`` states why the call can no longer be resumed.

    ``worker`` is the name of the worker that holds the call; empty if the server sent no name. ``is_moved``
    is true from a move to another worker until the claim there; ``moves`` counts the moves.
    """

    def __init__(self) -> None:
        """Start as a call that cannot be resumed yet."""
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

    def unwrap(self, data: bytes) -> bytes | None:
        """Remove the number from a received message; None if the message is a duplicate.

        Raises:
            ProtocolError: a number is missing, or the message is unknown.
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
        """The acknowledgement to send now, or None; on a connection that resumed the call it is due at
        once.
        """
        if self._token is None or (self._acked_s is not None and now_s < self._acked_s + ACK_S):
            return None
        self._acked_s = now_s
        return resume.encode_ack(resume.Ack(self._seq, self._frame))

    def claim(self, input_frame: int) -> bytes:
        """The claim: the first message of a connection that resumes the call.

        ``input_frame`` is the first frame that can still be sent.

        Raises:
            ProtocolError: the call cannot be resumed.
        """
        if self._token is None:
            raise ProtocolError("the server has not made this call resumable")
        self.is_moved = False
        return resume.encode_claim(resume.Claim(self._token, self._seq, self._frame, input_frame))

    def resuming_url(self, url: str) -> str:
        """The URL that resumes the call; ``url`` is the URL of its first connection."""
        worker = f"&worker={quote(self.worker)}" if self.worker else ""
        return url.replace("resume=1", "resume=again") + worker
