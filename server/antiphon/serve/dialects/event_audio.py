"""Audio in the events of OpenAI's protocols: its format as a codec's value, and an error about a field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from antiphon.audio.codecs import WireFormat
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError, FieldError
from antiphon.protocol.fields import INVALID_VALUE
from antiphon.protocol.live_session import Encoding, LiveFormat

CODECS: Final = {Encoding.PCM: "pcm_s16le", Encoding.PCMU: "pcmu", Encoding.PCMA: "pcma"}


def line_of(audio: LiveFormat) -> WireFormat:
    """The format of a session, as the codec's value."""
    return WireFormat(CODECS[audio.encoding], audio.rate)


def decoded(decode: Callable[[bytes], FloatArray], audio: bytes, event_id: str | None) -> FloatArray:
    """The samples of an event.

    Raises:
        FieldError: half a sample.
    """
    try:
        return decode(audio)
    except AudioError as error:
        words = f"audio is {error}"
        raise FieldError(words, param="audio", code=INVALID_VALUE, event_id=event_id) from error
