"""The base classes of the codecs in :mod:`antiphon.audio.codecs`, and the decoder and encoder of PCM and
G.711.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.audio.resample import Resampler
from antiphon.errors import AudioError

PCM_BYTES: Final = 32_768
"""Bytes converted in one step, a whole number of samples in every format: 0.7 s at 24 kHz, which an agent
processes in 1 ms.
"""

RESAMPLED_BYTES: Final = 1024
"""Bytes converted in one step if the rate changes: 1024 samples of G.711, in 0.3 ms."""

MAX_FEED_SAMPLES: Final = 1_440_000
"""Maximum number of samples of one message, a minute: two bytes of Opus can stand for 120 ms, so a limit in
bytes is not enough.
"""


class Decoder(ABC):
    """Decodes the bytes of one direction of one session to float32 at the model's rate. It is not
    thread-safe.

    On an event loop, :meth:`put` a message and take its samples in steps of less than 1 ms; elsewhere
    :meth:`feed` decodes it at once. ``has_more`` after a step means that another step is due before the next
    message. ``waiting_samples`` counts the samples of short packets, which are decoded together to save time;
    without such packets it is infinite.
    """

    piece_bytes = PCM_BYTES
    """Bytes decoded in one step."""

    waiting_samples: float = math.inf
    has_more = False

    def __init__(self) -> None:
        """Begin a stream."""
        self._pieces: deque[bytes] = deque()

    def put(self, data: bytes) -> None:
        """Add the payload of a message."""
        size = self.piece_bytes
        self._pieces.extend(data[start : start + size] for start in range(0, max(1, len(data)), size))

    @abstractmethod
    def step(self) -> FloatArray | None:
        """The next samples, float32 ``[N]``, N possibly 0; None when there is nothing to decode.

        Raises:
            AudioError: data that the codec cannot decode; the decoder can continue with the next message.
        """

    def feed(self, data: bytes) -> FloatArray:
        """All samples that a message completes, float32 ``[N]``, N possibly 0.

        Raises:
            AudioError: data that is not in the codec's format, or longer than a minute.
        """
        self.put(data)
        found: list[FloatArray] = []
        total = 0
        while (pcm := self.step()) is not None:
            found.append(pcm)
            total += pcm.size
            if total > MAX_FEED_SAMPLES:
                self.clear()
                raise AudioError(f"a message of {len(data)} bytes holds more than {MAX_FEED_SAMPLES} samples")
        return found[0] if len(found) == 1 else np.concatenate([np.zeros(0, np.float32), *found])

    def clear(self) -> None:
        """Drop data that is not decoded yet."""
        self._pieces.clear()
        self.has_more = False

    def close(self) -> None:  # noqa: B027 - most codecs have none
        """Free the codec's native memory."""


class Encoder(ABC):
    """Encodes float32 at the model's rate to the payloads of one direction of one session. It is not
    thread-safe."""

    @abstractmethod
    def encode(self, pcm: FloatArray) -> list[bytes]:
        """Encode float32 ``[N]``, clipped to [-1, 1]; returns the payload of each message.

        Raises:
            AudioError: a length that the codec does not support, or a sample that is not finite.
        """

    def finish(self) -> list[bytes]:
        """The payload that ends the stream, to be sent last. The encoder accepts no further audio."""
        return []

    def close(self) -> None:  # noqa: B027 - most codecs have none
        """Free the codec's native memory."""


class SampleDecoder(Decoder):
    """Decodes messages of whole samples at ``wire_rate`` to samples at ``rate``."""

    def __init__(self, convert: Callable[[bytes], FloatArray], rate: int, wire_rate: int) -> None:
        """``convert`` turns bytes into float32 in [-1, 1]."""
        super().__init__()
        self._convert = convert
        self._resampler = None if rate == wire_rate else Resampler(wire_rate, rate)
        self.piece_bytes = PCM_BYTES if self._resampler is None else RESAMPLED_BYTES

    def step(self) -> FloatArray | None:
        """The next samples, clipped to [-1, 1]."""
        if not self._pieces:
            return None
        data = self._pieces.popleft()
        self.has_more = bool(self._pieces)
        pcm = self._convert(data)
        return pcm if self._resampler is None else self._resampler.feed(pcm)


class SampleEncoder(Encoder):
    """Encodes samples at ``rate`` to one payload of samples at ``wire_rate``."""

    def __init__(self, convert: Callable[[FloatArray], bytes], rate: int, wire_rate: int) -> None:
        """``convert`` turns float32 into bytes."""
        self._convert = convert
        self._resampler = None if rate == wire_rate else Resampler(rate, wire_rate)

    def encode(self, pcm: FloatArray) -> list[bytes]:
        """Encode any number of samples as one payload."""
        return [self._convert(pcm if self._resampler is None else self._resampler.feed(pcm))]
