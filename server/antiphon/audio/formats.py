"""The four formats audio travels in, behind one decoder and one encoder.

``ogg``: pieces of one Ogg/Opus stream. ``opus``: one packet a message. ``pcm_s16le`` and ``pcm_f32le``: any
whole number of samples a message. All are mono at 24 kHz.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from antiphon.audio.ogg import OggOpusReader, OggOpusWriter
from antiphon.audio.opus import PACKET_MS, SAMPLE_RATE, OpusDecoder, OpusEncoder
from antiphon.audio.packets import join_packets, split_packet
from antiphon.audio.pcm import (
    FloatArray,
    f32le_from_float,
    float_from_f32le,
    float_from_s16le,
    s16le_from_float,
)
from antiphon.errors import AudioError

FORMATS = ("ogg", "opus", "pcm_s16le", "pcm_f32le")

PACKET_SAMPLES = SAMPLE_RATE * 20 // 1000
"""In ``opus``, one packet of 20 ms a message."""

_CALL_SAMPLES = tuple(SAMPLE_RATE * milliseconds // 1000 for milliseconds in sorted(PACKET_MS, reverse=True))

MAX_FEED_SAMPLES = 60 * SAMPLE_RATE
"""Audio in one message: two bytes of Opus can stand for 120 ms, so bytes alone bound nothing."""

_FROM_BYTES: Mapping[str, Callable[[bytes], FloatArray]] = {
    "pcm_s16le": float_from_s16le,
    "pcm_f32le": float_from_f32le,
}
_TO_BYTES: Mapping[str, Callable[[FloatArray], bytes]] = {
    "pcm_s16le": s16le_from_float,
    "pcm_f32le": f32le_from_float,
}


class AudioDecoder:
    """Payloads of one direction of one session to float32. One thread at a time."""

    def __init__(self, format: str) -> None:  # noqa: A002 - the word of the query and of the protocol
        """Make a decoder.

        Raises:
            AudioError: an unknown format.
        """
        _check_format(format)
        self._convert = _FROM_BYTES.get(format)
        self._opus = None if self._convert else OpusDecoder(SAMPLE_RATE)
        self._ogg = OggOpusReader() if format == "ogg" else None

    def feed(self, data: bytes) -> FloatArray:
        """One message's payload to float32 ``[N]``; with ``ogg``, N may be 0. PCM comes clipped to [-1, 1].

        Opus decodes to what upstream's servers hear: no pre-skip is cut off, nothing is clipped, and a new
        stream in the same session goes on with the same decoder.

        Raises:
            AudioError: data that is not what the format says; the decoder can be fed on.
        """
        if self._convert is not None:
            return self._convert(data)
        packets = self.packets(data)
        if len(packets) == 1:
            return self.decode(packets[0])
        pieces: list[FloatArray] = [np.zeros(0, np.float32)]
        total = 0
        for packet in packets:
            pieces.append(self.decode(packet))
            total += pieces[-1].size
            if total > MAX_FEED_SAMPLES:
                raise AudioError(f"a message of {len(data)} bytes holds more than {MAX_FEED_SAMPLES} samples")
        return np.concatenate(pieces)

    def feed_all(self, messages: Sequence[bytes]) -> FloatArray:
        """Several messages' payloads to float32 ``[N]``, exactly as :meth:`feed` one by one, but sooner.

        Raises:
            AudioError: data that is not what the format says; the decoder can be fed on.
        """
        if len(messages) == 1:
            return self.feed(messages[0])
        packets = messages if self._opus is None or self._ogg is not None else join_packets(messages)
        return self.feed(packets[0]) if len(packets) == 1 else np.concatenate(list(map(self.feed, packets)))

    def packets(self, data: bytes) -> list[bytes]:
        """The Opus packets that a message completes, to be given to :meth:`decode` a few at a time.

        Raises:
            AudioError: data that is no Ogg stream of Opus.
        """
        return [data] if self._ogg is None else self._ogg.feed(data)

    def decode(self, packet: bytes) -> FloatArray:
        """One packet of Opus to float32 ``[N]``.

        Raises:
            AudioError: it is none.
        """
        assert self._opus is not None
        return self._opus.decode(packet)

    def close(self) -> None:
        """Give native memory back."""
        if self._opus is not None:
            self._opus.close()


class AudioEncoder:
    """Float32 to payloads of one direction of one session. One thread at a time."""

    def __init__(self, format: str, *, serial: int = 1) -> None:  # noqa: A002 - as above
        """Make an encoder. ``serial`` is the number of the Ogg stream.

        Raises:
            AudioError: an unknown format.
        """
        _check_format(format)
        self._convert = _TO_BYTES.get(format)
        self._opus = None if self._convert else OpusEncoder(SAMPLE_RATE)
        self._ogg = None
        if format == "ogg" and self._opus is not None:
            self._ogg = OggOpusWriter(serial, SAMPLE_RATE, pre_skip=self._opus.lookahead_samples)
        self._headers = b"" if self._ogg is None else self._ogg.headers()

    def encode(self, pcm: FloatArray) -> list[bytes]:
        """Float32 ``[N]`` to the payloads of as many messages, clipped to [-1, 1].

        ``ogg``: N is 480, 960 or 1920, in one packet on one page; the stream's header pages come before the
        first. ``opus``: any multiple of 480, one packet each. PCM: any N, one payload.

        Raises:
            AudioError: another N, or a sample that is not finite.
        """
        if self._convert is not None:
            return [self._convert(pcm)]
        assert self._opus is not None
        if self._ogg is not None:
            page = self._ogg.page([self._opus.encode(pcm)], pcm.size)
            headers, self._headers = self._headers, b""
            return [headers + page]
        if not pcm.size or pcm.size % PACKET_SAMPLES:
            raise AudioError(f"{pcm.size} samples are no whole number of packets of {PACKET_SAMPLES}")
        packets: list[bytes] = []
        start = 0
        while start < pcm.size:
            # As much as one call can take, and then as the protocol wants it: see audio/packets.py.
            samples = next(size for size in _CALL_SAMPLES if size <= pcm.size - start)
            packets += split_packet(self._opus.encode(pcm[start : start + samples]))
            start += samples
        return packets

    def finish(self) -> list[bytes]:
        """What ends the stream, to be sent last: with ``ogg``, its last page if there was a first."""
        return [] if self._ogg is None or self._headers else [self._ogg.finish()]

    def close(self) -> None:
        """Give native memory back."""
        if self._opus is not None:
            self._opus.close()


def _check_format(name: str) -> None:
    if name not in FORMATS:
        raise AudioError(f"no audio format {name!r}; there is: {', '.join(FORMATS)}")
