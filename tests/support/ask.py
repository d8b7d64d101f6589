"""Ask the built-in talker a few questions by voice, and print answers, verdicts and latency.

Usage: python -m tests.support.ask URL [--out REPLY.wav]

Exits with 0 when every answer was right, no frame was lost, and at most 1 % of them were late.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.audio.files import read_audio
from antiphon.audio.wav import write_wav
from antiphon_client.clip import default_clips
from tests.support.caller import FRAME_S, FRAME_SAMPLES, SAMPLE_RATE, Heard, call, loud_at

QUESTIONS = {
    "question-name": ("What is your name", "my name is robin"),
    "question-sum": ("What is five plus four", "five plus four is nine"),
    "question-snow": ("What colour is snow", "snow is white"),
    "question-cow": ("What does a cow say", "a cow says moo"),
    "question-tomato": ("What colour is a tomato", "a tomato is red"),
    "question-plus": ("What is two plus two", "two plus two is four"),
}
"""The clips with their words and answers. `python -m lab.train.ten_voices` asks them in ten voices."""
MAX_LATE_SHARE = 0.01
"""Of all frames: another program on the machine makes a few late."""
PAUSE_S = 0.4
"""Silence around the words of a clip."""
LISTEN_S = 4.5
SEED = 0
"""Of what is sampled, so that every run has the same answers."""
EARLY_FRAMES = 5
"""An answer's text runs ahead of its sound, and a voice dies away before its recording ends."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and the samples of the call in which it ends and in which the next thing begins."""

    words: str
    answer: str
    end: int
    stop: int


def script() -> tuple[NDArray[np.float32], list[Question]]:
    """The whole call as float32 ``[frames * 1920]``, and what is asked in it."""
    files = {Path(clip.name).stem: clip for clip in default_clips()}
    parts: list[NDArray[np.float32]] = [np.zeros(SAMPLE_RATE // 2, np.float32)]
    asked, at = [], parts[0].size
    for name, (words, answer) in QUESTIONS.items():
        sound = read_audio(Path(str(files[name])))
        parts += [sound, np.zeros(int(LISTEN_S * SAMPLE_RATE), np.float32)]
        end = at + sound.size - int(PAUSE_S * SAMPLE_RATE)
        at += sound.size + parts[-1].size
        asked.append(Question(words, answer, end, at))
    pcm = np.concatenate(parts)
    return np.pad(pcm, (0, -pcm.size % FRAME_SAMPLES)), asked


def latency_ms(heard: Heard, question: Question) -> float | None:
    """From the end of a question to its answer's first sound at the caller; None where none came."""
    loud = loud_at(heard.pcm[question.end : question.stop])
    if not loud.size:
        return None
    after_s = heard.heard_at_s(question.end + int(loud[0])) - heard.said_at_s(question.end)
    return after_s * 1000 if math.isfinite(after_s) else None


def main(argv: list[str] | None = None) -> int:
    """Ask, and show a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="of a server whose model converses")
    parser.add_argument("--out", type=Path, help="keep the reply there, as WAV")
    options = parser.parse_args(argv)
    pcm, asked = script()
    heard = asyncio.run(call(options.url, pcm, seed=SEED))
    say = sys.stdout.write
    say(f"{'question':<30}{'answer':<36}{'after':>8}\n")
    right, wrong = ("✓", "✗") if "utf" in (sys.stdout.encoding or "").lower() else ("right", "wrong")
    faults = []
    for question in asked:
        text = heard.text(question.end // FRAME_SAMPLES - EARLY_FRAMES, question.stop // FRAME_SAMPLES)
        after = latency_ms(heard, question)
        mark, shown = right, "" if after is None else f"{after:.0f} ms"
        if text != question.answer or after is None:
            mark = wrong
            faults.append(f"'{question.words}' was not answered '{question.answer}'")
        say(f"{question.words:<30}{text or '(nothing)':<36}{shown:>8}  {mark}\n")
    due = range(min(heard.heard_s, default=0), len(heard.said_s))
    frames = [heard.heard_s[frame] - heard.said_s[frame] for frame in due if frame in heard.heard_s]
    lost, late = len(due) - len(frames), sum(one > FRAME_S for one in frames)
    p50, p99 = (float(np.percentile(frames, q)) * 1000 if frames else float("nan") for q in (50, 99))
    say(f"{len(due)} frames due, {lost} lost, {late} late; frame latency p50 {p50:.1f}, p99 {p99:.1f} ms\n")
    if options.out:
        write_wav(options.out, heard.pcm, SAMPLE_RATE)
    if lost or late > MAX_LATE_SHARE * len(due):
        limit = f"at most {MAX_LATE_SHARE:.0%} may be late"
        faults.append(f"{lost} frames were lost and {late} late, {limit}: is the machine busy?")
    for fault in faults:
        say(f"{wrong} {fault}\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
