"""What each format costs: microseconds a frame of 80 ms, on one thread, and what the parts of it cost.

python -m lab.bench.format_cost
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from antiphon.audio.formats import FORMATS, AudioDecoder, AudioEncoder
from antiphon.audio.ogg import OggOpusReader, OggOpusWriter
from antiphon.audio.pcm import FloatArray
from antiphon.ipc.arena import Arena, Shape
from antiphon.ipc.rings import InputRings, InputWriter
from antiphon.protocol import moshi
from antiphon_client.clip import fit_clip, load_clip

FRAME_SAMPLES = 1920

T = TypeVar("T")

RUNS = 5


def median_us(work: Callable[[T], object], items: Sequence[T]) -> float:
    """Median microseconds of one call, the best of some runs over all items."""
    medians = []
    for _ in range(RUNS):
        times_s = []
        for item in items:
            begun_s = time.perf_counter()
            work(item)
            times_s.append(time.perf_counter() - begun_s)
        medians.append(float(np.median(times_s)))
    return 1e6 * min(medians)


def format_us(name: str, frames: Sequence[FloatArray]) -> tuple[float, float, int]:
    """Encode and decode one frame in a format: (us, us, bytes a frame)."""
    encoder, decoder = AudioEncoder(name), AudioDecoder(name)
    encode_us = median_us(encoder.encode, frames)
    sent = [AudioEncoder(name).encode(frame) for frame in frames]

    def decode(payloads: list[bytes]) -> None:
        for payload in payloads:
            decoder.feed(payload)

    return encode_us, median_us(decode, sent), sum(map(len, sent[-1]))


def main() -> int:
    """Print both tables."""
    frames = np.split(fit_clip(load_clip(None), 20.0), 250)
    print("format      encode us  decode us  bytes a frame")
    for name in FORMATS:
        encode_us, decode_us, size = format_us(name, frames)
        print(f"{name:<10}  {encode_us:>9.1f}  {decode_us:>9.1f}  {size:>13}")
    packets = [payload for frame in frames for payload in AudioEncoder("opus").encode(frame)[:1]]
    writer, reader = OggOpusWriter(1), OggOpusReader()
    pages = [writer.page([packet], FRAME_SAMPLES) for packet in packets]
    rings, out = (
        InputRings(Arena.ordinary(Shape(4, 1, FRAME_SAMPLES, 0), 1)),
        np.zeros(FRAME_SAMPLES, np.float32),
    )
    ring = InputWriter(rings, 0)

    def through(frame: FloatArray) -> None:
        ring.write(frame, 0.0)
        out[:] = rings.pcm[0, rings.taken[0] % rings.capacity]
        rings.taken[0] += 1

    stamped = [moshi.StampedAudio(1, 5.5, 0.5, packet) for packet in packets]
    parts: dict[str, float] = {
        "Ogg page, written": median_us(lambda packet: writer.page([packet], FRAME_SAMPLES), packets),
        "Ogg page, read": median_us(reader.feed, pages),
        "ring, frame in and out": median_us(through, frames),
        "stamped message, written": median_us(moshi.encode, stamped),
        "stamped message, read": median_us(moshi.decode, [moshi.encode(message) for message in stamped]),
    }
    print("\npart                        us")
    for part, microseconds in parts.items():
        print(f"{part:<24}  {microseconds:>4.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
