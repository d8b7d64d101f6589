"""Audio in the events of OpenAI's protocols: its format as a codec's value, and an error about a field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from antiphon.audio.codecs import WireFormat
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError, FieldError
from antiphon.protocol.fields import INVALID_VALUE
from antiphon.protocol.live_session import Encoding, LiveFormat

CODECS: Final = {Encoding.PCM: "pcm_s16le", Encoding.PCMU: "pcmu", Encoding.PCMA: "pcma"}


def line_of(audio: LiveFormat) -> WireFormat:
    """The format of a session, as the codec's value."""
    return WireFormat(CODECS[audio.encoding], audio.rate)


FILES: Final = {b"OggS": "Ogg", b"RIFF": "WAV (RIFF)", b"fLaC": "FLAC", b"\x1a\x45\xdf\xa3": "WebM"}
"""What the events of a client that appends files begin with."""


class EventAudio:
    """The audio in the events of one session: bare samples."""

    def __init__(self) -> None:
        """Begin without an error."""
        self._has_refused = False

    def decoded(
        self, decode: Callable[[bytes], FloatArray], audio: bytes, event_id: str | None
    ) -> FloatArray:
        """The samples of an event; none of one that begins a file, which is said once.

        Raises:
            FieldError: half a sample, or the first event that begins a file.
        """
        kind = FILES.get(audio[:4])
        if kind is not None and self._has_refused:
            return np.zeros(0, np.float32)
        try:
            if kind is None:
                return decode(audio)
            self._has_refused = True
            words = (
                f"audio is a file, {kind}; bare samples are needed, in the session's format: audio/pcm, "
                "audio/pcmu or audio/pcma. Further events with files are dropped"
            )
        except AudioError as error:
            words = f"audio is {error}"
        raise FieldError(words, param="audio", code=INVALID_VALUE, event_id=event_id)
