"""Measures, without a server, a talker's greedy answers to many held-out questions at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from moshi.models.lm import LMGen

from lab.train.domain import REFUSAL
from lab.train.segments import CodeArray, Segment, read_segments
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer

BEFORE_FRAMES = 20
AFTER_FRAMES = 60


def hear(lm: Any, segments: Sequence[Segment], strips: Sequence[CodeArray]) -> list[list[int]]:
    """Return the word tokens of a talker's answer to each question; the input has a background strip for
    each."""
    frames = BEFORE_FRAMES + max(segment.codes.shape[1] for segment in segments) + AFTER_FRAMES
    user = np.stack([np.take(strip, np.arange(frames), axis=1, mode="wrap") for strip in strips])
    for row, segment in enumerate(segments):
        user[row, :, BEFORE_FRAMES : BEFORE_FRAMES + segment.codes.shape[1]] = segment.codes
    codes = torch.from_numpy(user.astype(np.int64)).to(lm.device)
    generator = LMGen(lm, use_sampling=False, check=False)
    said: list[list[int]] = [[] for _ in segments]
    with torch.no_grad(), generator.streaming(len(segments)):
        for frame in range(frames):
            tokens = generator.step(codes[:, :, frame : frame + 1])
            if tokens is None:
                continue
            for row, token in enumerate(tokens[:, 0, 0].tolist()):
                if token not in (EPAD, PAD):
                    said[row].append(token)
    return said


@dataclass(frozen=True, slots=True)
class Marks:
    """Shares of held-out turns: ``accuracy`` and ``refused_wrongly`` are shares of the questions of the
    domain.

    ``refused`` is the share of the other turns with the refusal or no reply, ``unfinished`` that of the
    questions whose answer lacks its last word.
    """

    accuracy: float
    refused_wrongly: float
    unfinished: float
    refused: float

    @property
    def score(self) -> float:
        """The score for choosing the best checkpoint: answers count twice."""
        return (2 * self.accuracy + self.refused) / 3

    def rounded(self) -> dict[str, float]:
        """Return the rounded values for a log."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def marked(pairs: Sequence[tuple[str, str]]) -> Marks:
    """Return the marks of pairs of the right answer and the given answer, one for each turn."""
    asked = [pair for pair in pairs if pair[0] != REFUSAL]
    others = [said for right, said in pairs if right == REFUSAL]

    def share(count: int, of: int) -> float:
        return count / max(1, of)

    return Marks(
        share(sum(said == right for right, said in asked), len(asked)),
        share(sum(is_refusal(said) for _, said in asked), len(asked)),
        share(sum(is_unfinished(said) for _, said in asked), len(asked)),
        share(sum(map(is_refusal, others)), len(others)),
    )


def is_refusal(said: str) -> bool:
    """Return whether an answer, possibly empty, says that nothing was understood."""
    return said in ("", REFUSAL)


def is_unfinished(said: str) -> bool:
    """Return whether an answer was begun and lacks its result: it ends in a word that ends no answer."""
    words = said.split()
    return bool(words) and words[-1] in ("is", "says", "comes", "plus", "minus", "after")


def judge(lm: Any, shard: Path, tokenizer: TalkerTokenizer, limit: int = 200) -> Marks:
    """Return the marks of at most ``limit`` turns of a shard."""
    scenes, _ = read_segments(shard)
    pairs = [(segment, scene.strip) for scene in scenes for segment in scene.segments]
    chosen = np.random.default_rng(0).permutation(len(pairs))[:limit]
    segments, strips = zip(*(pairs[index] for index in chosen), strict=True)
    was_training = lm.training
    lm.eval()
    said = hear(lm, segments, strips)
    lm.train(was_training)
    return marked(
        [(one.answer, tokenizer.decode(tokens)) for one, tokens in zip(segments, said, strict=True)]
    )
