"""Measures the cost of Opus, by encoding and decoding frames of 80 ms.

    python -m lab.bench.codec_cost

The frames are those of a call in format ``opus``: four packets of 20 ms in each direction, without sockets,
engine or event loop.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from antiphon.audio.codecs import make_decoder, make_encoder
from antiphon.audio.pcm import FloatArray
from antiphon_client.clip import fit_clip, load_clip
from lab.bench.harness import Values

FRAME_SAMPLES = 1920
PACKET_SAMPLES = 480


def speech_frames(count: int) -> list[FloatArray]:
    """Return ``count`` frames of the built-in clip."""
    pcm = fit_clip(load_clip(None), count * FRAME_SAMPLES / 24_000)
    return [pcm[start : start + FRAME_SAMPLES] for start in range(0, count * FRAME_SAMPLES, FRAME_SAMPLES)]


def cost_ms(frames: list[FloatArray]) -> tuple[float, float]:
    """Return the milliseconds to encode and to decode one frame, on this thread only."""
    encoder, decoder = make_encoder("opus"), make_decoder("opus")
    begun_s = time.perf_counter()
    packets = [encoder.encode(frame) for frame in frames]
    encoded_s = time.perf_counter()
    for group in packets:
        for packet in group:
            decoder.put(packet)
        decoder.step()
    decoded_s = time.perf_counter()
    per_frame_ms = 1000 / len(frames)
    return (encoded_s - begun_s) * per_frame_ms, (decoded_s - encoded_s) * per_frame_ms


def measure(*, frames: int = 500, runs: int = 5) -> Values:
    """Measure the time to encode and to decode a frame; times are medians over ``runs``."""
    speech = speech_frames(frames)
    cost_ms(speech[:50])  # load libopus and warm the caches
    costs = [cost_ms(speech) for _ in range(runs)]
    encode_ms, decode_ms = (float(np.median(column)) for column in zip(*costs, strict=True))
    return {
        "encode_ms": round(encode_ms, 4),
        "decode_ms": round(decode_ms, 4),
        "frame_ms": round(encode_ms + decode_ms, 4),
    }


def main() -> int:
    """Print every number as JSON."""
    print(json.dumps(measure(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
