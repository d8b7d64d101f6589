"""Measures the share of this machine's cores that calls take outside of the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from antiphon.audio.opus import SAMPLE_RATE, PacketDecoder, PacketEncoder
from antiphon.cores import core_time
from antiphon.engine.tick_times import HostLoad

SERVER: Final = 3.5
"""The processor time of a call and frame in the server, in multiples of the time of Opus. Both depend on
the speed of one core."""

CALLER: Final = 2.0
"""The same for a caller on this machine: ``antiphon probe`` takes 0.40 ms."""

FRAMES: Final = 12
SPELLS: Final = 4
"""The best of several short spells: other programs at the start take time from some of them."""


def measure_host_load(front_ends: int | None, clock: Callable[[], float] = time.thread_time) -> HostLoad:
    """The load of Opus calls on this machine, from the time in which it encodes and decodes 1 s of noise.

    ``front_ends`` processes have the sockets; if it is None, the engine's process has them. ``clock`` is
    processor time.

    Raises:
        AudioError: libopus is missing.
    """
    noise = np.random.default_rng(0).standard_normal((FRAMES, SAMPLE_RATE * 80 // 1000), np.float32)
    encoder, decoder = PacketEncoder(SAMPLE_RATE, SAMPLE_RATE), PacketDecoder(SAMPLE_RATE, SAMPLE_RATE)
    spells_s = []
    for _ in range(SPELLS):
        begin_s = clock()
        for frame in 0.1 * noise:
            for packet in encoder.encode(frame):
                decoder.put(packet)
            decoder.step()
        spells_s.append((clock() - begin_s) / FRAMES)
    codec_s = min(spells_s)
    return HostLoad(SERVER * codec_s, CALLER * codec_s, front_ends or 1, *core_time())
