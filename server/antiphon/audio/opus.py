"""Converts Opus packets to and from float32 mono through libopus (RFC 6716); each message is one packet.

A call into libopus releases the interpreter lock; among many threads, taking it again costs more than the
call. Therefore a frame of 80 ms is encoded at once and cut into packets of 20 ms for the wire, and packets
that arrive one by one are joined and decoded at once. The audio is bit-identical.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from ctypes import CDLL, c_int, c_int16, c_int32
from enum import IntEnum
from types import TracebackType
from typing import Final, Self

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.audio.codec import Decoder, Encoder
from antiphon.audio.libopus import OK, error_text, load_libopus, load_packet_parse
from antiphon.audio.pcm import limited
from antiphon.errors import AudioError

SAMPLE_RATE = 24_000
PACKET_MS = (20, 40, 80)
"""Lengths of encoded packets in ms. A packet of 80 ms needs a single call into libopus for a whole frame of
the model.
"""

BITRATE = 48_000
COMPLEXITY = 4
"""Encoder complexity with Application.LOW_DELAY: a quarter of the time of speech mode, and closer to the
original than upstream's setting; measured in docs/adr/0002-opus-through-libopus.md."""

MAX_PACKET_BYTES = 4000
"""Maximum bytes of a packet: the size of the buffer that libopus advises, and the limit of the stock web
client's decoder.
"""

MAX_PACKET_MS: Final = 120.0
MAX_FRAME_BYTES: Final = 1275
MAX_FRAMES: Final = 48
"""Maximum number of frames in one packet (section 3.2.5)."""

FRAME_MS: Final = (*(10.0, 20.0, 40.0, 60.0) * 3, *(10.0, 20.0) * 2, *(2.5, 5.0, 10.0, 20.0) * 4)
"""The length of a packet's frames for each configuration (table 2): SILK, hybrid, CELT."""

_ONE, _ANY = 0, 3  # codes for one frame, and for a stated number; 1 and 2 are two frames
_VARIABLE, _COUNT = 0x80, 0x3F
_MONO = 1
_SET_BITRATE, _SET_COMPLEXITY, _GET_LOOKAHEAD = 4002, 4010, 4027  # opus_defines.h


class Application(IntEnum):
    """The optimisation target of the encoder (opus_defines.h)."""

    SPEECH = 2048
    AUDIO = 2049
    LOW_DELAY = 2051


class _Native:
    """A native object that is destroyed once: by :meth:`close`, by ``with``, or with its owner.

    An object is not thread-safe; different objects may be used on different threads at once.
    """

    def __init__(self, library: CDLL, handle: int | None, error: c_int, destroy: str, what: str) -> None:
        if handle is None or error.value != OK:
            raise AudioError(f"{what}: {error_text(library, error.value)}")
        self._library = library
        self._handle: int | None = handle
        self._destroy = weakref.finalize(self, getattr(library, destroy), handle)

    def close(self) -> None:
        """Free the native memory; using the object afterwards is an AudioError."""
        self._handle = None
        self._destroy()

    def __enter__(self) -> Self:
        """Close at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _failure(self, code: int, what: str) -> AudioError:
        return AudioError(f"{what}: {error_text(self._library, code)}")

    def _open_handle(self) -> int:
        if self._handle is None:
            raise AudioError(f"this {type(self).__name__} was closed")
        return self._handle


class OpusEncoder(_Native):
    """Makes packets of 20, 40 or 80 ms from mono audio. ``bitrate`` is bits a second."""

    def __init__(
        self,
        sample_rate: int = SAMPLE_RATE,
        *,
        bitrate: int = BITRATE,
        complexity: int = COMPLEXITY,
        application: Application = Application.LOW_DELAY,
    ) -> None:
        """Make an encoder.

        Raises:
            AudioError: libopus is missing, or rejects a value (its rates: 8, 12, 16, 24, 48 kHz).
        """
        library = load_libopus()
        error = c_int()
        handle = library.opus_encoder_create(sample_rate, _MONO, application, ctypes.byref(error))
        super().__init__(library, handle, error, "opus_encoder_destroy", f"an encoder at {sample_rate} Hz")
        self._encode = library.opus_encode_float
        self.sizes = tuple(sample_rate * milliseconds // 1000 for milliseconds in PACKET_MS)
        """Samples per packet."""
        self._input = np.zeros(self.sizes[-1], np.float32)
        self._input_address = self._input.ctypes.data
        self._output = ctypes.create_string_buffer(MAX_PACKET_BYTES)
        self._output_address = ctypes.addressof(self._output)
        self._output_view = memoryview(self._output)
        self._control(_SET_BITRATE, c_int32(bitrate), f"a bitrate of {bitrate}")
        self._control(_SET_COMPLEXITY, c_int32(complexity), f"a complexity of {complexity}")
        lookahead = c_int32()
        self._control(_GET_LOOKAHEAD, ctypes.byref(lookahead), "the lookahead")
        self.lookahead_samples = lookahead.value
        """Samples of delay between encoded and decoded audio."""

    def encode(self, pcm: FloatArray) -> bytes:
        """One packet from float32 ``[N]``, N being 20, 40 or 80 ms; clipped to [-1, 1].

        Raises:
            AudioError: another number of samples, a sample that is not finite, or the encoder was closed.
        """
        samples = pcm.size
        if samples not in self.sizes:
            raise AudioError(f"{samples} samples make no packet, {', '.join(map(str, self.sizes))} do")
        if not math.isfinite(np.add.reduce(pcm)):
            pcm = limited(pcm)  # raises the error that names the sample
        np.minimum(np.maximum(pcm, -1.0, out=self._input[:samples]), 1.0, out=self._input[:samples])
        size: int = self._encode(
            self._open_handle(), self._input_address, samples, self._output_address, MAX_PACKET_BYTES
        )
        if size < 0:
            raise self._failure(size, f"encoding {samples} samples")
        return bytes(self._output_view[:size])

    def _control(self, request: int, argument: object, what: str) -> None:
        code = self._library.opus_encoder_ctl(self._open_handle(), request, argument)
        if code != OK:
            raise self._failure(code, what)


class OpusDecoder(_Native):
    """Turns packets of any Opus mode into mono audio; stereo is mixed down."""

    def __init__(self, sample_rate: int = SAMPLE_RATE) -> None:
        """Make a decoder.

        Raises:
            AudioError: libopus is missing, or rejects the rate.
        """
        library = load_libopus()
        error = c_int()
        handle = library.opus_decoder_create(sample_rate, _MONO, ctypes.byref(error))
        super().__init__(library, handle, error, "opus_decoder_destroy", f"a decoder at {sample_rate} Hz")
        self._decode = library.opus_decode_float
        self._output = np.zeros(round(sample_rate * MAX_PACKET_MS / 1000), np.float32)
        self._output_address = self._output.ctypes.data

    def decode(self, packet: bytes) -> FloatArray:
        """The audio of one packet, float32 ``[N]``; the packet determines N. It may slightly exceed [-1, 1].

        Raises:
            AudioError: a malformed packet, after which the decoder continues with the next; or it was closed.
        """
        if not packet:  # libopus would treat it as a lost packet
            raise AudioError("an Opus packet of 0 bytes")
        count: int = self._decode(
            self._open_handle(), packet, len(packet), self._output_address, self._output.size, 0
        )
        if count < 0:
            raise self._failure(count, f"decoding a packet of {len(packet)} bytes")
        return self._output[:count].copy()

    def conceal(self, samples: int, following: bytes = b"") -> FloatArray:
        """The audio of a lost packet of ``samples``, float32 ``[samples]``.

        The decoder uses the copy of the lost packet in the ``following`` packet, if there is one, and
        otherwise an estimate.

        Raises:
            AudioError: another number of samples than a packet has, or the decoder was closed.
        """
        count: int = self._decode(
            self._open_handle(),
            following or None,
            len(following),
            self._output_address,
            samples,
            int(bool(following)),
        )
        if count < 0:
            raise self._failure(count, f"concealing {samples} samples")
        return self._output[:count].copy()


def packet_ms(packet: bytes) -> float:
    """The duration of a packet in milliseconds, from its header; 0 if the header is invalid."""
    if not packet:
        return 0.0
    code, frame_ms = packet[0] & 3, FRAME_MS[packet[0] >> 3]
    if code != _ANY:
        return frame_ms if code == _ONE else 2 * frame_ms
    return frame_ms * (packet[1] & _COUNT) if len(packet) > 1 else 0.0


def split_packet(packet: bytes) -> list[bytes]:
    """Split a packet of several frames into packets of one frame each.

    Raises:
        AudioError: the frame lengths do not add up.
    """
    sizes, start = (c_int16 * MAX_FRAMES)(), c_int()
    frames = load_packet_parse()(packet, len(packet), None, None, sizes, ctypes.byref(start))
    if frames < 0:
        raise AudioError(f"cutting a packet of {len(packet)} bytes: {error_text(load_libopus(), frames)}")
    head, position = bytes((packet[0] & ~_ANY,)), start.value
    parts: list[bytes] = []
    for size in sizes[:frames]:
        parts.append(head + packet[position : position + size])
        position += size
    return parts


def join_packets(packets: Sequence[bytes]) -> Sequence[bytes]:
    """Join packets into one packet, if each has one frame and all have one configuration; otherwise return
    them unchanged.
    """
    if len(packets) < 2 or {packet[:1] for packet in packets} != {packets[0][:1]}:
        return packets
    head = packets[0][0] if packets[0] else _ANY
    is_long = len(packets) * FRAME_MS[head >> 3] > MAX_PACKET_MS
    if head & 3 != _ONE or is_long or max(map(len, packets)) > 1 + MAX_FRAME_BYTES:
        return packets
    sizes = b"".join([_size(len(packet) - 1) for packet in packets[:-1]])
    return [bytes((head | _ANY, len(packets) | _VARIABLE)) + sizes + b"".join([it[1:] for it in packets])]


def _size(size: int) -> bytes:
    """A frame's length (section 3.2.1)."""
    if size < 252:
        return bytes((size,))
    first = 252 + (size & 3)
    return bytes((first, (size - first) >> 2))


class PacketDecoder(Decoder):
    """Decodes messages of one packet each; short packets are decoded together."""

    def __init__(self, rate: int, _wire_rate: int) -> None:
        """Opus decodes to any of its rates."""
        super().__init__()
        self._opus, self._rate = OpusDecoder(rate), rate
        self.waiting_samples = 0

    def put(self, data: bytes) -> None:
        """Buffer a packet; an empty packet is invalid and is decoded at once, without waiting for more."""
        self._pieces.append(data)
        self.waiting_samples += round(packet_ms(data) * self._rate / 1000) or self._rate

    def step(self) -> FloatArray | None:
        """The audio of all waiting packets."""
        if not self._pieces:
            return None
        packets, self.waiting_samples = join_packets(tuple(self._pieces)), 0
        self._pieces.clear()
        if len(packets) == 1:
            return self._opus.decode(packets[0])
        return np.concatenate([self._opus.decode(packet) for packet in packets])

    def close(self) -> None:
        """Free libopus's memory."""
        self._opus.close()


class PacketEncoder(Encoder):
    """Encodes any multiple of 20 ms, one packet for each 20 ms."""

    def __init__(self, rate: int, _wire_rate: int) -> None:
        """Make an encoder; ``rate`` must be a rate that Opus supports."""
        self._opus = OpusEncoder(rate)

    def encode(self, pcm: FloatArray) -> list[bytes]:
        """The packets of ``pcm``, 20 ms each."""
        sizes = self._opus.sizes
        if not pcm.size or pcm.size % sizes[0]:
            raise AudioError(f"{pcm.size} samples are no whole number of packets of {sizes[0]}")
        packets: list[bytes] = []
        start = 0
        for size in reversed(sizes):  # the most samples of one call
            while size <= pcm.size - start:
                packets += split_packet(self._opus.encode(pcm[start : start + size]))
                start += size
        return packets

    def close(self) -> None:
        """Free libopus's memory."""
        self._opus.close()
