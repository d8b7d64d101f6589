"""Ask a server that can converse a few questions, by voice, and show what it answers and how fast.

Usage: python -m tests.support.ask URL [--out REPLY.wav]

Exits with 0 when every question was answered, and no frame was lost or late.
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
    "question-colour": "What colour is the sky",
    "question-count": "Count from three to seven",
    "question-cow": "What does a cow say",
    "question-monday": "What comes after Monday",
    "question-name": "What is your name",
    "question-sum": "What is five plus four",
}
"""The words of the clips that the built-in model can answer."""
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
    end: int
    stop: int


def script() -> tuple[NDArray[np.float32], list[Question]]:
    """The whole call as float32 ``[frames * 1920]``, and what is asked in it."""
    files = {Path(clip.name).stem: clip for clip in default_clips()}
    parts: list[NDArray[np.float32]] = [np.zeros(SAMPLE_RATE // 2, np.float32)]
    asked, at = [], parts[0].size
    for name, words in QUESTIONS.items():
        sound = read_audio(Path(str(files[name])))
        parts += [sound, np.zeros(int(LISTEN_S * SAMPLE_RATE), np.float32)]
        end = at + sound.size - int(PAUSE_S * SAMPLE_RATE)
        at += sound.size + parts[-1].size
        asked.append(Question(words, end, at))
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
    is_answered = True
    for question in asked:
        text = heard.text(question.end // FRAME_SAMPLES - EARLY_FRAMES, question.stop // FRAME_SAMPLES)
        after = latency_ms(heard, question)
        is_answered = is_answered and bool(text) and after is not None
        say(f"{question.words:<30}{text or '(nothing)':<36}{'' if after is None else f'{after:.0f} ms':>8}\n")
    due = range(min(heard.heard_s, default=0), len(heard.said_s))
    frames = [heard.heard_s[frame] - heard.said_s[frame] for frame in due if frame in heard.heard_s]
    lost, late = len(due) - len(frames), sum(one > FRAME_S for one in frames)
    p50, p99 = (float(np.percentile(frames, q)) * 1000 if frames else float("nan") for q in (50, 99))
    say(f"{len(due)} frames due, {lost} lost, {late} late; frame latency p50 {p50:.1f}, p99 {p99:.1f} ms\n")
    if options.out:
        write_wav(options.out, heard.pcm, SAMPLE_RATE)
    return 0 if is_answered and lost == 0 and late == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
