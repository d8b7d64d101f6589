"""The rules of Full-Duplex-Bench (v1 and v1.5), applied to times: taking over, stopping, backchannels.

The words are the talker's own, at the frames of its output, instead of a recogniser's; the stretches of sound
are found by loudness, instead of by a voice detector.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from antiphon.arrays import FloatArray
from lab.train.rows import FRAME_S, Reply
from tests.support.caller import SAMPLE_RATE, STEP_SAMPLES, loud_at

Stretch = tuple[float, float]
SHORT_S: Final = 1.0
FEW_WORDS: Final = 3
LONG_S: Final = 3.0
TALKER_GAP_S: Final = 0.5
"""Longest silence in seconds within one stretch of speech."""


def stretches(pcm: FloatArray, gap_s: float = TALKER_GAP_S) -> list[Stretch]:
    """Return the audible stretches in seconds; silences shorter than ``gap_s`` do not separate them."""
    found: list[Stretch] = []
    for sample in loud_at(pcm):
        start_s, end_s = float(sample) / SAMPLE_RATE, float(sample + STEP_SAMPLES) / SAMPLE_RATE
        if found and start_s - found[-1][1] <= gap_s:
            found[-1] = (found[-1][0], end_s)
        else:
            found.append((start_s, end_s))
    return found


@dataclass(frozen=True, slots=True)
class Speech:
    """Words with their starts and ends in seconds."""

    words: tuple[tuple[float, float, str], ...]

    @classmethod
    def between(cls, reply: Reply, start_s: float, stop_s: float) -> Speech:
        """Return the words that start between two times; a word lasts until the next one or the end of its
        sound."""
        sounds = stretches(reply.pcm)
        starts = [at_s for at_s, _ in reply.words]
        words = []
        for (at_s, word), next_s in zip(reply.words, [*starts, float("inf")][1:], strict=True):
            sound_end_s = next((end_s for first_s, end_s in sounds if end_s > at_s), at_s + FRAME_S)
            end_s = max(at_s + FRAME_S, min(next_s, sound_end_s))
            if start_s <= at_s < stop_s:
                words.append((at_s, min(end_s, stop_s), word))
        return cls(tuple(words))

    @property
    def is_take_over(self) -> bool:
        """Whether the talker takes over: with more than three words, or with a second of speech."""
        if not self.words:
            return False
        span_s = self.words[-1][1] - self.words[0][0]
        return span_s >= SHORT_S or len(self.words) > FEW_WORDS

    def latency_s(self, end_s: float) -> float | None:
        """Return the seconds from the end of the user's turn to the talker's first word, at least 0; None if
        the talker does not take over."""
        return max(0.0, self.words[0][0] - end_s) if self.is_take_over else None


def overlap_s(user: Sequence[Stretch], talker: Sequence[Stretch]) -> float:
    """Return the seconds in which user and talker are audible at once."""
    return sum(
        max(0.0, min(ours[1], theirs[1]) - max(ours[0], theirs[0])) for ours in user for theirs in talker
    )


def is_aside(reply: Reply, stretch: Stretch) -> bool:
    """Return whether a stretch is a backchannel: three words at most, and less than a second."""
    words = [word for at_s, word in reply.words if stretch[0] - FRAME_S <= at_s < stretch[1]]
    return len(words) <= FEW_WORDS and stretch[1] - stretch[0] < SHORT_S


def asides(reply: Reply, start_s: float, stop_s: float) -> tuple[bool, int]:
    """Return whether the talker took over while the user spoke, and how many backchannels it gave."""
    heard = [one for one in stretches(reply.pcm) if start_s <= one[0] < stop_s]
    is_over = any(one[1] - one[0] > LONG_S or not is_aside(reply, one) for one in heard)
    return is_over, sum(is_aside(reply, one) for one in heard)


def taking_over(speeches: Iterable[tuple[Speech, float]]) -> dict[str, float | int | None]:
    """Return the share of replies that take over, and their latency; each reply comes with the end of the
    user's turn."""
    found = [(speech.is_take_over, speech.latency_s(end_s)) for speech, end_s in speeches]
    latencies = [latency_s for _, latency_s in found if latency_s is not None]
    return {
        "turns": len(found),
        "take_over": round(sum(took for took, _ in found) / max(1, len(found)), 4),
        "latency_ms_mean": round(1000 * statistics.fmean(latencies), 1) if latencies else None,
        "latency_ms_median": round(1000 * statistics.median(latencies), 1) if latencies else None,
    }
