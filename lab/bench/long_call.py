"""Measures one long call: whether late steps cost the same as early ones, and whether memory grows."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import psutil

from antiphon.backends.base import Backend, StepInputs
from lab.bench.harness import Values, tell
from lab.bench.turns import summary

FRAMES_PER_MINUTE = 750
EARLY_MINUTE = 5
STEP_LIMIT = 0.05
MEMORY_LIMIT = 0.01
"""Largest growth of the late minute's median step, and of the memory, as fractions."""

_NOISE_FRAMES = 64


@dataclass(frozen=True, slots=True)
class Call:
    """The length of a call: its minutes, and the frames of each minute (750 in real time)."""

    minutes: int = 60
    frames_per_minute: int = FRAMES_PER_MINUTE


def measure_call(backend: Backend, call: Call) -> Values:
    """Step one row through the call at full speed, with noise as input, and measure each minute.

    By minute: ``cpu_ms`` and ``wall_ms`` of a step (summaries), and ``rss_bytes`` at its end.
    """
    spec, process = backend.info.spec, psutil.Process()
    shape = (_NOISE_FRAMES, 1, spec.frame_samples)
    pcm = np.random.default_rng(0).normal(0, 0.1, shape).astype(np.float32)
    row = np.zeros(1, np.int32)
    minutes = []
    for minute in range(call.minutes):
        cpu_ms, wall_ms = [], []
        for frame in range(call.frames_per_minute):
            inputs = StepInputs(row, np.array([minute == frame == 0]), pcm[frame % _NOISE_FRAMES])
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            backend.step(inputs)
            cpu_ms.append(1000 * (time.process_time() - cpu_s))
            wall_ms.append(1000 * (time.perf_counter() - wall_s))
        rss_bytes = process.memory_info().rss
        minutes.append({"cpu_ms": summary(cpu_ms), "wall_ms": summary(wall_ms), "rss_bytes": rss_bytes})
        tell(f"minute {minute + 1}: {summary(cpu_ms)['median_ms']:.2f} ms, {rss_bytes / 2**20:.1f} MiB")
    info = backend.info
    return {"model": spec.name, "backend": info.name, "dtype": info.dtype, "minutes": minutes}


def judge_call(found: Values) -> Values:
    """Compare the last minute but one (59 of 60) with minute 5, or with the first if there are fewer minutes.

    ``step_change`` and ``memory_change`` are fractions; ``holds`` is whether both are within the limits.
    """
    minutes = found["minutes"]
    early = EARLY_MINUTE if len(minutes) > EARLY_MINUTE + 1 else 1
    late = max(len(minutes) - 1, early)
    first, last = minutes[early - 1], minutes[late - 1]
    step_change = last["cpu_ms"]["median_ms"] / first["cpu_ms"]["median_ms"] - 1
    memory_change = last["rss_bytes"] / first["rss_bytes"] - 1
    return {
        "early_minute": early,
        "late_minute": late,
        "step_change": step_change,
        "memory_change": memory_change,
        "holds": abs(step_change) <= STEP_LIMIT and memory_change <= MEMORY_LIMIT,
    }


def render_call(found: Values) -> str:
    """Return the verdict in a paragraph of Markdown."""
    verdict = judge_call(found)
    early, late = (found["minutes"][verdict[f"{when}_minute"] - 1] for when in ("early", "late"))
    steps = [
        f"{kind} {early[key]['median_ms']:.2f} and {late[key]['median_ms']:.2f} ms"
        for kind, key in (("CPU time", "cpu_ms"), ("by the clock", "wall_ms"))
    ]
    sizes = f"{early['rss_bytes'] / 2**20:.1f} and {late['rss_bytes'] / 2**20:.1f} MiB"
    return (
        f"One call of {len(found['minutes'])} minutes ({found['model']}, backend {found['backend']}, "
        f"{found['dtype']}). A step in minute {verdict['early_minute']} and in minute "
        f"{verdict['late_minute']}, medians: {'; '.join(steps)} ({verdict['step_change']:+.1%} CPU time, "
        f"the limit is {STEP_LIMIT:.0%}). Resident memory: {sizes} ({verdict['memory_change']:+.2%}, the "
        f"limit is {MEMORY_LIMIT:.0%}). {'Both hold.' if verdict['holds'] else 'That does not hold.'}"
    )
