"""The table of codecs: every encoding of audio in and out.

To add one, write a decoder and an encoder (:mod:`antiphon.audio.codec`) and their row in :data:`CODECS`; a
protocol then maps its own name to the row's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from antiphon.audio import g711
from antiphon.audio.codec import Decoder, Encoder, SampleDecoder, SampleEncoder
from antiphon.audio.g711 import Law
from antiphon.audio.ogg import OggDecoder, OggEncoder
from antiphon.audio.opus import SAMPLE_RATE, PacketDecoder, PacketEncoder
from antiphon.audio.pcm import (
    FloatArray,
    f32le_from_float,
    float_from_f32le,
    float_from_s16le,
    s16le_from_float,
)
from antiphon.audio.speech_file import FILE_RECIPES, EncodedFile, OggFile, SampleFile
from antiphon.audio.wav import streamed_header
from antiphon.errors import AudioError


@dataclass(frozen=True, slots=True)
class AudioCodec:
    """An encoding of mono audio, with the factories of its encoder and decoder.

    ``encoder`` and ``decoder`` are factories, called once for each direction of a session with the model's
    rate and the rate on the wire; a format that the server only writes has no decoder. ``content_type`` is
    its HTTP media type. ``is_framed``: each message is independent, so it may be stamped with its frame or
    lost, and its call may be resumed.
    """

    content_type: str
    encoder: Callable[[int, int], Encoder]
    decoder: Callable[[int, int], Decoder] | None = None
    is_framed: bool = False


def _samples(
    content_type: str, encode: Callable[..., bytes], decode: Callable[..., FloatArray], **options: object
) -> AudioCodec:
    encoder = partial(SampleEncoder, partial(encode, **options))
    return AudioCodec(
        content_type, encoder, partial(SampleDecoder, partial(decode, **options)), is_framed=True
    )


CODECS: Final[Mapping[str, AudioCodec]] = MappingProxyType(
    {
        "ogg": AudioCodec("audio/ogg", OggEncoder, OggDecoder),
        "opus": AudioCodec("audio/opus", PacketEncoder, PacketDecoder, is_framed=True),
        "pcm_s16le": _samples("audio/pcm", s16le_from_float, float_from_s16le),
        "pcm_f32le": _samples("audio/pcm", f32le_from_float, float_from_f32le),
        "pcmu": _samples("audio/pcmu", g711.encode, g711.decode, law=Law.MU),
        "pcma": _samples("audio/pcma", g711.encode, g711.decode, law=Law.A),
        "ogg_file": AudioCodec("audio/ogg", OggFile),
        "wav": AudioCodec("audio/wav", partial(SampleFile, streamed_header)),
        "pcm": AudioCodec("audio/pcm", partial(SampleFile, lambda _rate: b"")),
        **{name: AudioCodec(it.content_type, partial(EncodedFile, it)) for name, it in FILE_RECIPES.items()},
    }
)
"""The codecs by name; the last six are files, which the server only writes."""


@dataclass(frozen=True, slots=True)
class WireFormat:
    """A codec's name and, for a codec of several rates, the rate on the wire."""

    codec: str
    rate: int = SAMPLE_RATE


def make_decoder(wire: WireFormat | str, rate: int = SAMPLE_RATE) -> Decoder:
    """Make a decoder of ``wire``, which returns samples at ``rate``.

    Raises:
        AudioError: no such codec, or one that is write-only.
    """
    wire = WireFormat(wire) if isinstance(wire, str) else wire
    readable = {name: codec.decoder for name, codec in CODECS.items() if codec.decoder is not None}
    decoder = readable.get(wire.codec)
    if decoder is None:
        raise AudioError(f"no audio format {wire.codec!r} is read; there is: {', '.join(readable)}")
    return decoder(rate, wire.rate)


def make_encoder(wire: WireFormat | str, rate: int = SAMPLE_RATE) -> Encoder:
    """Make an encoder of samples at ``rate`` to ``wire``.

    Raises:
        AudioError: no such codec.
    """
    wire = WireFormat(wire) if isinstance(wire, str) else wire
    if wire.codec not in CODECS:
        raise AudioError(f"no audio format {wire.codec!r}; there is: {', '.join(CODECS)}")
    return CODECS[wire.codec].encoder(rate, wire.rate)
