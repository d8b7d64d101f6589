"""Measures a recogniser's transcripts of speech, by the length of the silence before the speech.

Usage: make bench BENCH=first_word, with espeak-ng, flite and festival (festvox-kallpc16k) installed.

Questions of held-out voices are cut at their first sound; for speech without a pause, one voice asks question
after question. No server is involved.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.backends.base import StepInputs
from antiphon.backends.registry import make_backend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.transcript import SpeechTiming, Word, WordAssembler
from lab.train.domain import Domain
from lab.train.phrasings import PHRASINGS
from lab.train.recogniser import word_errors
from lab.train.synthetic_voices import SAMPLE_RATE, Voice, draw_voice, speak

AFTER_FRAMES: Final = 24
QUIET: Final = 0.01
"""Share of the loudest sample below which sound before and after a question is cut off."""
PROGRAMS: Final = ("espeak-ng", "flite", "festival")
PREFIXES: Final = (1, 2, 3, 6, 13)

Question = tuple[str, FloatArray]
"""A question, and its sound, float32 ``[samples]``."""


def cut(pcm: FloatArray) -> FloatArray:
    """Return a sound without the silence around it."""
    loud = np.flatnonzero(np.abs(pcm) > QUIET * np.abs(pcm).max())
    return pcm[loud[0] : loud[-1]]


def questions(count: int, seed: int = 5) -> list[Question]:
    """Return questions of every kind, each in a voice that is not in the training data."""
    rng, domain, found = random.Random(seed), Domain(), list[Question]()
    while len(found) < count:
        voice, intent = draw_voice(rng, held_out=True), list(PHRASINGS)[len(found) % len(PHRASINGS)]
        if voice.program in PROGRAMS:
            asked = domain.draw(rng, intent).question
            found.append((asked, cut(speak(voice, asked))))
    return found


def without_pause(voice: Voice, seconds: float, seed: int = 3) -> Question:
    """Return the text and the sound, of at least ``seconds``, of one voice that asks question after question
    without pauses.
    """
    rng, domain, asked, sounds = random.Random(seed), Domain(), list[str](), list[FloatArray]()
    while sum(pcm.size for pcm in sounds) < seconds * SAMPLE_RATE:
        asked.append(domain.draw(rng).question)
        sounds.append(cut(speak(voice, asked[-1])))
    return " ".join(asked), np.concatenate(sounds)


def written(clips: Sequence[FloatArray], prefix_frames: int, model: str = "tiny-stt") -> list[str]:
    """Return the model's transcript of each clip, float32 ``[samples]``, after ``prefix_frames`` frames of
    silence."""
    checkpoint = load_checkpoint(model)
    spec, tokenizer = checkpoint.spec, checkpoint.text_tokenizer()
    assert tokenizer is not None
    backend = make_backend("onnx", checkpoint, slots=len(clips))
    timing = replace(SpeechTiming.of(spec), prefix_frames=prefix_frames)
    rows = [WordAssembler(timing, tokenizer.decode) for _ in clips]
    longest = prefix_frames + AFTER_FRAMES + max(-(-clip.size // spec.frame_samples) for clip in clips)
    pcm = np.zeros((len(clips), longest * spec.frame_samples), np.float32)
    for row, clip in enumerate(clips):
        first = prefix_frames * spec.frame_samples
        pcm[row, first : first + clip.size] = clip
    frames = pcm.reshape(len(clips), longest, spec.frame_samples)
    texts: list[list[str]] = [[] for _ in clips]
    for step in range(longest):
        every = np.arange(len(clips), dtype=np.int32)
        outputs = backend.step(StepInputs(every, np.full(len(clips), step == 0), frames[:, step].copy()))
        assert outputs.text_tokens is not None
        for row, token in enumerate(outputs.text_tokens.tolist()):
            texts[row] += [event.text for event in rows[row].feed(token) if isinstance(event, Word)]
    backend.close()
    return [" ".join(words) for words in texts]


def line(name: str, asked: Sequence[Question], prefix_frames: int) -> str:
    """Return a row of the table: the numbers of empty transcripts and of wrong words."""
    heard = written([pcm for _, pcm in asked], prefix_frames)
    words = sum(len(text.split()) for text, _ in asked)
    pairs = [(text, other) for (text, _), other in zip(asked, heard, strict=True)]
    wrong = sum(min(len(text.split()), word_errors(text, other)) for text, other in pairs)
    empty = sum(not text for text in heard)
    return f"| {name} | {prefix_frames} | {empty} of {len(asked)} | {100 * wrong / words:.1f} % |"


def main() -> int:
    """Measure, and print the table."""
    short = questions(120)
    voices = [Voice("flite", name) for name in ("slt", "awb", "rms")]
    voices += [Voice("espeak-ng", f"en-us+{name}") for name in ("f5", "m7", "iven3", "steph3", "f2")]
    long = [[without_pause(voice, seconds) for voice in voices] for seconds in (7, 60)]
    for prefix in PREFIXES:
        for name, asked in (("questions", short), ("7 s", long[0]), ("60 s", long[1])):
            sys.stdout.write(line(name, asked, prefix) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
