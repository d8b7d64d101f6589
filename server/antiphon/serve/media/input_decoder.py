"""A caller's bytes to samples, on the event loop: as soon as a frame is whole, and less than 1 ms at a time.

This module is independent of protocols. The owner puts in what a message carried and takes steps until there
is nothing left to do; it reads no further message meanwhile, so what waits here is at most one message, or
the packets of an unfinished frame.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from antiphon.audio.formats import AudioDecoder
from antiphon.audio.opus import SAMPLE_RATE
from antiphon.audio.packets import packet_ms
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AntiphonError, SessionFailedError

PIECE_BYTES: Final = 4096
"""Bytes of an Ogg stream taken apart in one step, 0.1 ms; the packets of a page that they complete wait."""

STEP_SAMPLES: Final = 12_000
"""Half a second decoded in one step: 0.5 ms."""

STEP_PACKETS: Final = 32
"""Packets decoded in one step: short ones cost more by number than by length."""

PCM_BYTES: Final = 262_144
"""Samples converted in one step, 0.4 ms; a message of the largest size there is by default, and whole samples
in every format."""


class InputDecoder:
    """The decoder of one caller. Short packets (format ``opus``) are decoded a frame at once."""

    def __init__(self, format: str, frame_samples: int) -> None:  # noqa: A002 - the word of the protocol
        """Make a decoder; a frame has ``frame_samples`` samples."""
        self._decoder = AudioDecoder(format)
        self._is_ogg, self._is_pcm = format == "ogg", format.startswith("pcm")
        self._frame_samples = frame_samples
        self._bytes: deque[bytes] = deque()
        self._packets: deque[bytes] = deque()
        self._waiting_samples = 0
        self._missing_samples = self._heard_samples = 0

    def put(self, data: bytes) -> None:
        """Add what a message carried."""
        size = PCM_BYTES if self._is_pcm else PIECE_BYTES
        if not (self._is_ogg or self._is_pcm):
            self._packets.append(data)
            self._waiting_samples += round(packet_ms(data) * SAMPLE_RATE / 1000) or self._frame_samples
        elif len(data) <= size:
            self._bytes.append(data)
        else:
            self._bytes.extend(data[start : start + size] for start in range(0, len(data), size))

    def step(self, *, all_of_it: bool = False) -> FloatArray | None:
        """The next samples, float32 ``[N]``, N perhaps 0; None when there is nothing to do.

        Of packets that are gathered, that is so until they make the frame whole, unless ``all_of_it``.

        Raises:
            AudioError: data that is not what the format says.
        """
        try:
            if self._is_pcm:
                return self._decoder.feed(self._bytes.popleft()) if self._bytes else None
            return self._step_ogg() if self._is_ogg else self._step_packets(all_of_it=all_of_it)
        except AntiphonError:
            raise
        except Exception as error:  # a boundary: the codec is native code, and a failure of it is ours
            raise SessionFailedError(
                f"the server could not decode: {type(error).__name__}: {error}"
            ) from error

    @property
    def has_more(self) -> bool:
        """Whether another step is due, of what is not gathered."""
        return bool(self._bytes or (self._is_ogg and self._packets))

    def heard(self, samples: int) -> None:
        """So many samples were used: what a frame still lacks is counted from them."""
        self._heard_samples += samples
        self._missing_samples = self._frame_samples - self._heard_samples % self._frame_samples

    def close(self) -> None:
        """Give native memory back."""
        self._decoder.close()

    def _step_packets(self, *, all_of_it: bool) -> FloatArray | None:
        if not self._packets or not (all_of_it or self._waiting_samples >= self._missing_samples):
            return None
        packets, self._packets = tuple(self._packets), deque()
        self._waiting_samples = 0
        return self._decoder.feed_all(packets)

    def _step_ogg(self) -> FloatArray | None:
        if not self._packets:
            if not self._bytes:
                return None
            self._packets.extend(self._decoder.packets(self._bytes.popleft()))
        pieces: list[FloatArray] = []
        samples = 0
        while self._packets and samples < STEP_SAMPLES and len(pieces) < STEP_PACKETS:
            pieces.append(self._decoder.decode(self._packets.popleft()))
            samples += pieces[-1].size
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
