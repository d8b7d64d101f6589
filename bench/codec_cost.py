"""What Opus costs: one 80 ms frame encoded and decoded, and whether threads really run side by side.

    python -m bench.codec_cost

The frames are those of a call in format ``opus``: four packets of 20 ms in each direction. The pool is the
server's own (:mod:`antiphon.serve.hosting.lanes`), without sockets, engine or event loop.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np

from antiphon.audio.formats import AudioDecoder, AudioEncoder
from antiphon.audio.pcm import FloatArray
from antiphon.config import ServerConfig
from antiphon.serve.hosting.lanes import Lane, ThreadWorker
from antiphon_client.clip import fit_clip, load_clip
from bench.harness import BenchError, Values

FRAME_SAMPLES = 1920
PACKET_SAMPLES = 480


@dataclass(slots=True)
class Call:
    """One session's codecs and the frames it still has to turn around."""

    frames: list[FloatArray]
    encoder: AudioEncoder
    decoder: AudioDecoder
    left: int
    done: threading.Semaphore
    error: Exception | None = None

    def turn(self) -> bool:
        """Encode a frame as a server does and decode it as a server does; true while there are more."""
        self.decoder.feed_all(self.encoder.encode(self.frames[self.left % len(self.frames)]))
        self.left -= 1
        if self.left == 0:
            self.done.release()
        return self.left > 0

    def fault(self, error: Exception) -> None:
        """Keep what went wrong in a turn; the call is over."""
        self.error = error
        self.done.release()


def speech_frames(count: int) -> list[FloatArray]:
    """So many frames of our own clip."""
    pcm = fit_clip(load_clip(None), count * FRAME_SAMPLES / 24_000)
    return [pcm[start : start + FRAME_SAMPLES] for start in range(0, count * FRAME_SAMPLES, FRAME_SAMPLES)]


def cost_ms(frames: list[FloatArray]) -> tuple[float, float]:
    """Milliseconds to encode and to decode one frame, on this thread alone."""
    encoder, decoder = AudioEncoder("opus"), AudioDecoder("opus")
    begun_s = time.perf_counter()
    packets = [encoder.encode(frame) for frame in frames]
    encoded_s = time.perf_counter()
    for group in packets:
        decoder.feed_all(group)
    decoded_s = time.perf_counter()
    per_frame_ms = 1000 / len(frames)
    return (encoded_s - begun_s) * per_frame_ms, (decoded_s - encoded_s) * per_frame_ms


def pool_s(frames: list[FloatArray], *, calls: int, threads: int) -> float:
    """Seconds in which ``threads`` threads turn every frame around in each of ``calls`` calls.

    Raises:
        BenchError: a codec failed.
    """
    workers = [ThreadWorker(f"codec-{index}") for index in range(threads)]
    done = threading.Semaphore(0)
    held = [Call(frames, AudioEncoder("opus"), AudioDecoder("opus"), len(frames), done) for _ in range(calls)]
    lanes = [Lane(workers[index % threads], call.turn, call.fault) for index, call in enumerate(held)]
    switch_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(ServerConfig().switch_interval_ms / 1000)  # as in the server
    begun_s = time.perf_counter()
    for lane in lanes:
        lane.wake()
    for _ in lanes:
        done.acquire()
    elapsed_s = time.perf_counter() - begun_s
    sys.setswitchinterval(switch_interval_s)
    for worker in workers:
        worker.stop(5.0)
    failed = [call.error for call in held if call.error is not None]
    if failed:
        raise BenchError(f"a codec failed in {len(failed)} of {calls} calls: {failed[0]}")
    return elapsed_s


def measure(*, frames: int = 500, calls: int = 8, runs: int = 5) -> Values:
    """Every number of this benchmark; medians over ``runs``, one and two threads in turn."""
    speech = speech_frames(frames)
    cost_ms(speech[:50])  # libopus is loaded and the caches are warm
    costs = [cost_ms(speech) for _ in range(runs)]
    pairs = [
        (pool_s(speech, calls=calls, threads=1), pool_s(speech, calls=calls, threads=2)) for _ in range(runs)
    ]
    encode_ms, decode_ms = (float(np.median(column)) for column in zip(*costs, strict=True))
    ratios = [one_s / two_s for one_s, two_s in pairs]
    return {
        "encode_ms": round(encode_ms, 4),
        "decode_ms": round(decode_ms, 4),
        "frame_ms": round(encode_ms + decode_ms, 4),
        "pool": {
            "calls": calls,
            "frames": frames,
            "one_thread_s": [round(one_s, 4) for one_s, _ in pairs],
            "two_threads_s": [round(two_s, 4) for _, two_s in pairs],
            "speedups": [round(ratio, 3) for ratio in ratios],
            "speedup": round(float(np.median(ratios)), 3),
        },
    }


def main() -> int:
    """Print every number as JSON."""
    print(json.dumps(measure(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
