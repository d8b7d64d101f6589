"""What every codec of :mod:`antiphon.audio.codecs` is: a decoder, an encoder, and those of bare samples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Final

from antiphon.audio.pcm import FloatArray
from antiphon.audio.resample import Resampler
from antiphon.errors import AntiphonError, AudioError, SessionFailedError

PCM_BYTES: Final = 262_144
"""Samples converted in one step, 0.4 ms; a message of the largest size there is by default, and whole samples
in every format."""


class Decoder(ABC):
    """Bytes of one direction of one session to float32 at the model's rate. One thread at a time.

    On an event loop a message is :meth:`put` and taken in steps of less than 1 ms; elsewhere :meth:`feed`
    decodes it at once. The owner takes no further message while :attr:`has_more`.
    """

    piece_bytes: ClassVar[int] = PCM_BYTES
    """Bytes taken in one step."""

    def __init__(self) -> None:
        """Begin a stream."""
        self._pieces: deque[bytes] = deque()
        self._waiting_samples: float = math.inf

    @abstractmethod
    def feed(self, data: bytes) -> FloatArray:
        """All samples that a message completes, float32 ``[N]``, N perhaps 0.

        Raises:
            AudioError: data that is not what the codec says; the decoder can be fed on.
        """

    def put(self, data: bytes) -> None:
        """Add what a message carried."""
        size = self.piece_bytes
        starts = range(0, max(1, len(data)), size)
        self._pieces.extend(data[start : start + size] for start in starts)

    def step(self, *, gather_samples: int = 0) -> FloatArray | None:
        """The next samples, float32 ``[N]``, N perhaps 0; None when there is nothing to do.

        Short packets are decoded once they make ``gather_samples``; 0 decodes what there is.

        Raises:
            AudioError: data that is not what the codec says.
            SessionFailedError: the codec itself failed.
        """
        if self._waiting_samples < gather_samples:
            return None
        try:
            return self._step()
        except AntiphonError:
            raise
        except Exception as error:  # a boundary: the codec is native code, and a failure of it is ours
            raise SessionFailedError(
                f"the server could not decode: {type(error).__name__}: {error}"
            ) from error

    def _step(self) -> FloatArray | None:
        return self.feed(self._pieces.popleft()) if self._pieces else None

    @property
    def has_more(self) -> bool:
        """Whether another step is due, of what is not gathered."""
        return bool(self._pieces)

    def close(self) -> None:  # noqa: B027 - most codecs have none
        """Give native memory back."""


class Encoder(ABC):
    """Float32 at the model's rate to the payloads of one direction of one session. One thread at a time."""

    @abstractmethod
    def encode(self, pcm: FloatArray) -> list[bytes]:
        """Float32 ``[N]``, clipped to [-1, 1], to the payloads of as many messages.

        Raises:
            AudioError: a length that the codec does not have, or a sample that is not finite.
        """

    def encode_reply(self, pcm: FloatArray) -> list[bytes]:
        """As :meth:`encode`, of what a model said.

        Raises:
            SessionFailedError: it cannot be encoded; as an AudioError a peer would be blamed for it.
        """
        try:
            return self.encode(pcm)
        except AudioError as error:
            raise SessionFailedError(f"the model's audio cannot be encoded: {error}") from error

    def finish(self) -> list[bytes]:
        """What ends the stream, to be sent last. Nothing may be encoded afterwards."""
        return []

    def close(self) -> None:  # noqa: B027 - most codecs have none
        """Give native memory back."""


class SampleDecoder(Decoder):
    """Any whole number of samples a message, at ``wire_rate``, to samples at ``rate``."""

    def __init__(self, convert: Callable[[bytes], FloatArray], rate: int, wire_rate: int) -> None:
        """``convert`` makes float32 in [-1, 1] of bytes."""
        super().__init__()
        self._convert = convert
        self._resampler = None if rate == wire_rate else Resampler(wire_rate, rate)

    def feed(self, data: bytes) -> FloatArray:
        """PCM, clipped."""
        pcm = self._convert(data)
        return pcm if self._resampler is None else self._resampler.feed(pcm)


class SampleEncoder(Encoder):
    """Samples at ``rate`` to one payload of samples at ``wire_rate``."""

    def __init__(self, convert: Callable[[FloatArray], bytes], rate: int, wire_rate: int) -> None:
        """``convert`` makes bytes of float32."""
        self._convert = convert
        self._resampler = None if rate == wire_rate else Resampler(rate, wire_rate)

    def encode(self, pcm: FloatArray) -> list[bytes]:
        """Any number of samples, one payload."""
        return [self._convert(pcm if self._resampler is None else self._resampler.feed(pcm))]
