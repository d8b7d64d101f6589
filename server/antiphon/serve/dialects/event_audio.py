"""Decodes the audio in the events of OpenAI's protocols, and detects events that contain a file."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from antiphon.audio.codec import Decoder
from antiphon.audio.codecs import WireFormat
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError, FieldError
from antiphon.protocol.fields import INVALID_VALUE
from antiphon.protocol.live_session import Encoding, LiveFormat

CODECS: Final = {Encoding.PCM: "pcm_s16le", Encoding.PCMU: "pcmu", Encoding.PCMA: "pcma"}


def line_of(audio: LiveFormat) -> WireFormat:
    """The codec of a session's format, and its rate."""
    return WireFormat(CODECS[audio.encoding], audio.rate)


BEGINNINGS: Final = re.compile(
    rb"(?P<Ogg>OggS\0)|(?P<WAV>RIFF.{4}WAVE)|(?P<FLAC>fLaC[\0\x80]\0\0\x22)"
    rb"|(?P<WebM>\x1a\x45\xdf\xa3.{1,8}?\x42[\x82\x86])|(?P<MP4>\0\0\0.ftyp)|(?P<MP3>ID3[\2-\4]\0)",
    re.DOTALL,
)
"""The first bytes of audio events that contain a file instead of samples; each has at least five bytes."""

SAMPLES_FOLLOW: Final = "WAV"
"""The kind of file whose later parts are plain samples; later parts of other kinds of file would be noise."""


class EventAudio:
    """Detects files in the events of one session, whose audio must be plain samples."""

    def __init__(self, renewal: str) -> None:
        """Start without a file; ``renewal`` names the events that :meth:`renew` is called for."""
        self._renewal = renewal
        self._has_refused = self._is_in_file = False

    @property
    def kept(self) -> bytes:
        """The state that another connection of the same call passes to :meth:`go_on`."""
        return b"file" if self._is_in_file else b""

    def go_on(self, kept: bytes) -> None:
        """Continue from another connection's state: the rest of a file that began there is dropped."""
        self._has_refused = self._is_in_file = bool(kept)

    def renew(self) -> None:
        """Accept audio again: later audio does not belong to an earlier file."""
        self._has_refused = self._is_in_file = False

    def is_file(self, audio: bytes, event_id: str | None) -> bool:
        """Whether an event begins or continues a file, and is dropped.

        Raises:
            FieldError: the event is the first one of the file.
        """
        if self._is_in_file:
            return True
        begins = BEGINNINGS.match(audio)
        if begins is None:
            return False
        self._is_in_file = begins.lastgroup != SAMPLES_FOLLOW
        if self._has_refused and not self._is_in_file:
            return True
        self._has_refused = True
        dropped = (
            f"All audio until {self._renewal} is" if self._is_in_file else "Further events with files are"
        )
        words = (
            f"audio is a file, {begins.lastgroup}; bare samples are needed, in the session's format: "
            f"audio/pcm, audio/pcmu or audio/pcma. {dropped} dropped"
        )
        raise FieldError(words, param="audio", code=INVALID_VALUE, event_id=event_id)


def decoded(decoder: Decoder, event_id: str | None) -> FloatArray:
    """The next samples of an event's audio, float32 ``[N]``; one step takes less than a millisecond.

    Raises:
        FieldError: an odd number of bytes.
    """
    try:
        pcm = decoder.step()
    except AudioError as error:
        decoder.clear()
        raise FieldError(f"audio is {error}", param="audio", code=INVALID_VALUE, event_id=event_id) from error
    return np.zeros(0, np.float32) if pcm is None else pcm
