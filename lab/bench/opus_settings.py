"""Which settings of Opus a server should send with: time, size and closeness of each.

    python -m lab.bench.opus_settings

Times are medians a frame of 80 ms on one thread. The distance is the root mean square difference of band
levels (37 bands, 94 Hz to 12 kHz, 21 ms windows) between original and decoded speech, where there is speech:
a crude ear, but the same for all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import product

import numpy as np

from antiphon.audio.opus import Application, OpusDecoder, OpusEncoder
from antiphon.audio.pcm import FloatArray
from antiphon_client.clip import fit_clip, load_clip

FRAME_SAMPLES = 1920

WINDOW, HOP, BANDS = 512, 240, 40
AUDIBLE_DB = 50.0
"""Windows whose loudest band is this far below the loudest of all count as silence."""


def band_levels_db(pcm: FloatArray) -> FloatArray:
    """Levels in bands of equal ratio, float ``[windows, bands]``, in dB."""
    windows = np.lib.stride_tricks.sliding_window_view(pcm, WINDOW)[::HOP] * np.hanning(WINDOW)
    power = np.square(np.abs(np.fft.rfft(windows)))
    edges = np.unique(np.geomspace(2, WINDOW // 2, BANDS).round().astype(int))
    levels: FloatArray = 10 * np.log10(np.add.reduceat(power, edges[:-1], axis=1) + 1e-3)
    return levels


def distance_db(said: FloatArray, heard: FloatArray) -> float:
    """How far apart two aligned recordings are."""
    one, other = band_levels_db(said), band_levels_db(heard)
    is_speech = one.max(axis=1) > one.max() - AUDIBLE_DB
    return float(np.sqrt(np.square(one - other)[is_speech].mean()))


def through(pcm: FloatArray, encoder: OpusEncoder, packet_samples: int) -> tuple[float, float, int, float]:
    """Encode and decode all of ``pcm``: (encode us, decode us, bytes, distance in dB)."""
    heard: list[FloatArray] = []
    encode_s, decode_s, size = [], [], 0
    with encoder, OpusDecoder() as decoder:
        for frame in np.split(pcm, pcm.size // FRAME_SAMPLES):
            begun_s = time.perf_counter()
            packets = [encoder.encode(part) for part in np.split(frame, FRAME_SAMPLES // packet_samples)]
            encoded_s = time.perf_counter()
            heard += [decoder.decode(packet) for packet in packets]
            decode_s.append(time.perf_counter() - encoded_s)
            encode_s.append(encoded_s - begun_s)
            size += sum(map(len, packets))
    late = np.concatenate(heard)[encoder.lookahead_samples :]
    distance = distance_db(pcm[: late.size], late)
    return 1e6 * float(np.median(encode_s)), 1e6 * float(np.median(decode_s)), size, distance


def settings() -> Iterator[tuple[Application, int, int, int]]:
    """Application, bit rate, complexity and samples a packet."""
    yield Application.SPEECH, 27_000, 9, 960  # about what upstream's servers do
    yield from product(Application, (24_000, 32_000, 48_000, 64_000), (5,), (1920,))
    yield from product((Application.LOW_DELAY,), (48_000,), (0, 2, 9), (1920,))
    yield from product((Application.LOW_DELAY,), (48_000,), (5,), (960, 480))


def main() -> int:
    """Print a table."""
    pcm = fit_clip(load_clip(None), 24.0)
    seconds = pcm.size / 24_000
    print("application  kb/s asked  complexity  packet ms | encode us  decode us   kb/s  distance dB")
    for application, bitrate, complexity, samples in settings():
        runs = [
            through(
                pcm, OpusEncoder(application=application, bitrate=bitrate, complexity=complexity), samples
            )
            for _ in range(3)
        ]
        encode_us, decode_us, size, distance = min(runs)
        print(
            f"{application.name:<11}  {bitrate / 1000:>10g}  {complexity:>10}  {samples // 24:>9} | "
            f"{encode_us:>9.0f}  {decode_us:>9.0f}  {size * 8 / seconds / 1000:>5.1f}  {distance:>11.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
