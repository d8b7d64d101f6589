"""How well a talker answers, without a server: greedy, many held-out questions side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from moshi.models.lm import LMGen

from lab.train.segments import CodeArray, Segment, read_segments
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer

BEFORE_FRAMES = 20
AFTER_FRAMES = 60


def hear(lm: Any, segments: Sequence[Segment], strips: Sequence[CodeArray]) -> list[list[int]]:
    """The word tokens a talker says to each question, on a background strip each."""
    frames = BEFORE_FRAMES + max(segment.codes.shape[1] for segment in segments) + AFTER_FRAMES
    user = np.stack([np.take(strip, np.arange(frames), axis=1, mode="wrap") for strip in strips])
    for row, segment in enumerate(segments):
        user[row, :, BEFORE_FRAMES : BEFORE_FRAMES + segment.codes.shape[1]] = segment.codes
    codes = torch.from_numpy(user.astype(np.int64))
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


def accuracy(lm: Any, shard: Path, tokenizer: TalkerTokenizer, limit: int = 200) -> float:
    """The share of a shard's questions to which every word of the answer is right."""
    scenes, _ = read_segments(shard)
    pairs = [(segment, scene.strip) for scene in scenes for segment in scene.segments]
    chosen = np.random.default_rng(0).permutation(len(pairs))[:limit]
    segments, strips = zip(*(pairs[index] for index in chosen), strict=True)
    was_training = lm.training
    lm.eval()
    said = hear(lm, segments, strips)
    lm.train(was_training)
    right = [
        tokens == tokenizer.encode(segment.answer) for tokens, segment in zip(said, segments, strict=True)
    ]
    return sum(right) / len(right)
