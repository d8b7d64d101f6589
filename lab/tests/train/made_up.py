"""Scenes and voices for the tests of the training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.train.segments import STRIP_FRAMES, CodeArray, Scene, Segment

TINY = Path(__file__).parents[3] / "weights" / "antiphon_weights" / "tiny"
SENTENCES = ("two plus three is five", "the sky is blue", "hello nice to meet you")
"""Questions with answers; other sentences get a refusal."""


def scene_of_questions(rng: np.random.Generator, frames: int = 20) -> Scene:
    """Six questions of random codes, in a scene."""

    def codes(count: int) -> CodeArray:
        return rng.integers(0, 512, (8, count)).astype(np.int16)

    segments = [
        Segment(codes(frames), 2, frames - 7, "what is two plus three", SENTENCES[i % 3]) for i in range(6)
    ]
    return Scene(codes(STRIP_FRAMES), tuple(segments))
