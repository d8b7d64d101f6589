"""Measures a recogniser on held-out questions, without a server: words, and their starts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

import numpy as np
import torch
from moshi.models.lm import LMGen

from antiphon.models.transcript import SpeechTiming, Word, WordAssembler
from lab.train.passages import DELAY_FRAMES, FRAME_RATE, Room
from lab.train.recogniser import word_errors
from lab.train.talker_tokenizer import TalkerTokenizer

BEFORE_FRAMES: Final = 15
AFTER_FRAMES: Final = DELAY_FRAMES + 10
FRAME_S: Final = 1 / FRAME_RATE

Told = list[tuple[float, str]]
"""Words with their starts in seconds."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The result of a dictation: wrong words per spoken word, the median error of starts, and ``silent``.

    ``silent`` is the share of speech outside the domain without a transcript; both are None if there was
    nothing to count. Words written for such speech do not count as wrong.
    """

    word_error: float
    start_error_ms: float | None
    silent: float | None = None

    @property
    def score(self) -> float:
        """The score for choosing the best checkpoint: one wrong word in a hundred counts as much as four
        turns in a hundred."""
        return 1 - self.word_error + 0.25 * (self.silent or 0.0)


def marks(said: Sequence[Told], told: Sequence[Told]) -> Marks:
    """Compare transcripts with the spoken words; starts are compared for the words that are equal and in the
    same order."""
    silent = [not heard for true, heard in zip(said, told, strict=True) if not true]
    pairs = [(true, heard) for true, heard in zip(said, told, strict=True) if true]
    said, told = [true for true, _ in pairs], [heard for _, heard in pairs]
    wrong = sum(word_errors(_text(a), _text(b)) for a, b in zip(said, told, strict=True))
    late_ms: list[float] = []
    for true, heard in zip(said, told, strict=True):
        both = SequenceMatcher(None, [word for _, word in true], [word for _, word in heard], autojunk=False)
        for at, other, size in both.get_matching_blocks():
            late_ms += [abs(heard[other + i][0] - true[at + i][0]) * 1000 for i in range(size)]
    words = sum(len(one) for one in said)
    return Marks(
        wrong / max(1, words),
        round(statistics.median(late_ms), 1) if late_ms else None,
        statistics.fmean(silent) if silent else None,
    )


def _text(told: Told) -> str:
    return " ".join(word for _, word in told)


def dictate(lm: Any, rooms: Sequence[Room], tokenizer: TalkerTokenizer, limit: int = 160) -> Marks:
    """Return the marks of greedy transcripts of at most ``limit`` random lines of the rooms, all at once."""
    pairs = [(line, room.strip) for room in rooms for line in room.lines]
    chosen = np.random.default_rng(0).permutation(len(pairs))[:limit]
    lines, strips = zip(*(pairs[index] for index in chosen), strict=True)
    frames = BEFORE_FRAMES + max(line.segment.codes.shape[1] for line in lines) + AFTER_FRAMES
    codes = np.stack([np.take(strip, np.arange(frames), axis=1, mode="wrap") for strip in strips])
    for row, line in enumerate(lines):
        heard = line.segment.codes
        codes[row, :, BEFORE_FRAMES : BEFORE_FRAMES + heard.shape[1]] = heard
    timing = SpeechTiming(FRAME_S, DELAY_FRAMES * FRAME_S, prefix_frames=1)
    # The first frame is the silence before the caller's audio, whose frames count from the second.
    said = [
        [
            ((BEFORE_FRAMES - timing.prefix_frames + start) * FRAME_S, word)
            for start, word in zip(line.starts, line.segment.question.split(), strict=True)
        ]
        for line in lines
    ]
    return marks(said, _written(lm, torch.from_numpy(codes.astype(np.int64)), timing, tokenizer))


def _written(lm: Any, codes: torch.Tensor, timing: SpeechTiming, tokenizer: TalkerTokenizer) -> list[Told]:
    """The text that a model writes for codes ``[B, 8, T]``, by the server's own rules."""
    was_training = lm.training
    lm.eval()
    rows = [WordAssembler(timing, tokenizer.decode) for _ in codes]
    told: list[Told] = [[] for _ in codes]
    generator = LMGen(lm, use_sampling=False, check=False)
    with torch.no_grad(), generator.streaming(len(codes)):
        for frame in range(codes.shape[2]):
            tokens = generator.step(codes[:, :, frame : frame + 1])
            assert tokens is not None  # no stream of a recogniser is delayed
            for row, token in enumerate(tokens[:, 0, 0].tolist()):
                events = rows[row].feed(token)
                told[row] += [(event.start_s, event.text) for event in events if isinstance(event, Word)]
    for row, words in enumerate(rows):
        events = words.finish(codes.shape[2] * FRAME_S)
        told[row] += [(event.start_s, event.text) for event in events if isinstance(event, Word)]
    lm.train(was_training)
    return told
