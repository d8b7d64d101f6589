"""Statistics of lists of times: percentiles, playback gaps, jitter, drift. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

START_BUFFER_S = 0.08
"""Seconds of audio that a client buffers before it starts playing."""
_ROUNDING_S = 1e-6  # sums of frame lengths are not exact; less than a sample is no silence


@dataclass(frozen=True, slots=True)
class Distribution:
    """Count, mean and percentiles of values. Percentiles are by nearest rank: each is an observed value."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: ArrayLike) -> Distribution | None:
        """Summarise ``values``, without NaN; None if no value is left."""
        array = np.asarray(values, np.float64).ravel()
        array = array[~np.isnan(array)]
        if array.size == 0:
            return None
        p50, p95, p99 = np.percentile(array, (50, 95, 99), method="inverted_cdf")
        return cls(
            count=int(array.size),
            mean=float(array.mean()),
            p50=float(p50),
            p95=float(p95),
            p99=float(p99),
            max=float(array.max()),
        )


def playback_gaps_s(
    arrived_s: Iterable[float],
    arrived_samples: Iterable[int],
    *,
    sample_rate: int,
    start_buffer_s: float = START_BUFFER_S,
) -> list[float]:
    """Lengths of the silences in the playback of a client that starts when ``start_buffer_s`` is buffered.

    The pieces of audio arrive at ``arrived_s``, ascending. When the buffer is empty, the client starts again
    by the same rule. The silence before the first start and after the last piece does not count as a gap.
    """
    start_samples = round(start_buffer_s * sample_rate)
    gaps: list[float] = []
    buffered = 0  # samples waiting while nothing plays
    dry_s: float | None = None  # when the current playback ends; None without playback
    silent_since_s: float | None = None
    for now_s, samples in zip(arrived_s, arrived_samples, strict=True):
        if dry_s is not None and now_s > dry_s + _ROUNDING_S:
            silent_since_s, dry_s, buffered = dry_s, None, 0
        if dry_s is not None:
            dry_s += samples / sample_rate
            continue
        buffered += samples
        if buffered >= start_samples:
            if silent_since_s is not None:
                gaps.append(now_s - silent_since_s)
            dry_s = now_s + buffered / sample_rate
    return gaps


def jitter_ms(replied_s: NDArray[np.float64], frame_s: float) -> NDArray[np.float64]:
    """How far each interval between replies to consecutive frames differs from one frame, in ms.

    ``replied_s`` is float64 ``[frames]`` with NaN for frames without a reply, which are in no interval.
    """
    intervals_s: NDArray[np.float64] = np.diff(replied_s)
    known_s = intervals_s[~np.isnan(intervals_s)]
    return np.asarray(np.abs(known_s - frame_s) * 1000, np.float64)


def drift_ms(sent_s: NDArray[np.float64], latency_ms: NDArray[np.float64]) -> float | None:
    """Growth of the latency over the run: the median of the last quarter minus the median of the first
    quarter.

    A growing backlog shows here before frames are lost. None if either quarter has fewer than four replies.
    """
    known = ~np.isnan(latency_ms)
    sent_s, latency_ms = sent_s[known], latency_ms[known]
    if sent_s.size == 0:
        return None
    first_s, last_s = float(sent_s.min()), float(sent_s.max())
    quarter_s = (last_s - first_s) / 4
    early = latency_ms[sent_s < first_s + quarter_s]
    late = latency_ms[sent_s > last_s - quarter_s]
    if min(early.size, late.size) < 4:
        return None
    return float(np.median(late) - np.median(early))
