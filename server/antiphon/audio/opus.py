"""Opus packets to and from float32, mono, through libopus (RFC 6716)."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import CDLL, c_int, c_int32
from enum import IntEnum
from types import TracebackType
from typing import Self

import numpy as np

from antiphon.audio.libopus import OK, error_text, load_libopus
from antiphon.audio.pcm import FloatArray, limited
from antiphon.errors import AudioError

SAMPLE_RATE = 24_000
PACKET_MS = (20, 40, 80)
"""Lengths of the packets we make. One of 80 ms is one call into libopus for a whole frame of the model."""

BITRATE = 48_000
COMPLEXITY = 4
"""With Application.LOW_DELAY: a quarter of the time of speech mode, and closer to the original than what
upstream's servers send; measured in docs/adr/0002-opus-through-libopus.md."""

MAX_PACKET_BYTES = 4000
"""What libopus advises as a buffer, and all that the stock web client's decoder has room for."""

_MAX_DECODED_MS = 120  # the longest packet there is
_MONO = 1
_SET_BITRATE, _SET_COMPLEXITY, _GET_LOOKAHEAD = 4002, 4010, 4027  # opus_defines.h


class Application(IntEnum):
    """What the encoder optimises for (opus_defines.h)."""

    SPEECH = 2048
    AUDIO = 2049
    LOW_DELAY = 2051


class _Native:
    """A native object that is destroyed once: by :meth:`close`, by ``with``, or with its owner.

    One thread at a time may use it; different ones may be used on different threads at once.
    """

    def __init__(self, library: CDLL, handle: int | None, error: c_int, destroy: str, what: str) -> None:
        if handle is None or error.value != OK:
            raise AudioError(f"{what}: {error_text(library, error.value)}")
        self._library = library
        self._handle: int | None = handle
        self._destroy = weakref.finalize(self, getattr(library, destroy), handle)

    def close(self) -> None:
        """Give the native memory back; using the object afterwards is an AudioError."""
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
            AudioError: libopus is missing, or refuses a value (its rates: 8, 12, 16, 24, 48 kHz).
        """
        library = load_libopus()
        error = c_int()
        handle = library.opus_encoder_create(sample_rate, _MONO, application, ctypes.byref(error))
        super().__init__(library, handle, error, "opus_encoder_destroy", f"an encoder at {sample_rate} Hz")
        self._encode = library.opus_encode_float
        self._sizes = tuple(sample_rate * milliseconds // 1000 for milliseconds in PACKET_MS)
        self._input = np.zeros(self._sizes[-1], np.float32)
        self._input_address = self._input.ctypes.data
        self._output = ctypes.create_string_buffer(MAX_PACKET_BYTES)
        self._output_address = ctypes.addressof(self._output)
        self._output_view = memoryview(self._output)
        self._control(_SET_BITRATE, c_int32(bitrate), f"a bitrate of {bitrate}")
        self._control(_SET_COMPLEXITY, c_int32(complexity), f"a complexity of {complexity}")
        lookahead = c_int32()
        self._control(_GET_LOOKAHEAD, ctypes.byref(lookahead), "the lookahead")
        self.lookahead_samples = lookahead.value
        """Samples by which decoded audio lags behind what was encoded."""

    def encode(self, pcm: FloatArray) -> bytes:
        """One packet from float32 ``[N]``, N being 20, 40 or 80 ms; clipped to [-1, 1].

        Raises:
            AudioError: another number of samples, a sample that is not finite, or the encoder was closed.
        """
        samples = pcm.size
        if samples not in self._sizes:
            raise AudioError(f"{samples} samples make no packet, {', '.join(map(str, self._sizes))} do")
        self._input[:samples] = limited(pcm)
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
            AudioError: libopus is missing, or refuses the rate.
        """
        library = load_libopus()
        error = c_int()
        handle = library.opus_decoder_create(sample_rate, _MONO, ctypes.byref(error))
        super().__init__(library, handle, error, "opus_decoder_destroy", f"a decoder at {sample_rate} Hz")
        self._decode = library.opus_decode_float
        self._output = np.zeros(sample_rate * _MAX_DECODED_MS // 1000, np.float32)
        self._output_address = self._output.ctypes.data

    def decode(self, packet: bytes) -> FloatArray:
        """The audio of one packet, float32 ``[N]``, N as the packet says. It may exceed [-1, 1] a little.

        Raises:
            AudioError: a malformed packet, after which the decoder goes on with the next; or it was closed.
        """
        if not packet:  # libopus would take it for a lost one
            raise AudioError("an Opus packet of 0 bytes")
        count: int = self._decode(
            self._open_handle(), packet, len(packet), self._output_address, self._output.size, 0
        )
        if count < 0:
            raise self._failure(count, f"decoding a packet of {len(packet)} bytes")
        return self._output[:count].copy()
