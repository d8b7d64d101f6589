"""Answers to spoken questions: how many are right, word by word.

A folder of questions holds ``*.npz`` shards. Each has ``codes`` int16 ``[K, frames]``, all questions one
after the other as the codec heard them; ``ends``, where each ends; ``sizes``, how many share a scene;
``strips`` ``[scenes, K, frames]``, the codes of each scene's noise only; and ``told``, JSON: ``[start, end,
question, answer]`` of each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from antiphon.errors import CheckpointFormatError, ConfigError
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec
from antiphon.models.tokenizer import Tokenizer
from antiphon_quantize.gate_subject import Codes, EvalModel

BEFORE_FRAMES: Final = 20
AFTER_FRAMES: Final = 60
"""Frames of the scene's noise before a question, and at least as many after it."""

GREEDY: Final = SamplingParameters(text_temperature=0.0, audio_temperature=0.0)


class Examination(Protocol):
    """A task that a model is marked by."""

    def mark(self, judged: EvalModel) -> float:
        """The share that is right, 0 to 1."""
        ...


@dataclass(frozen=True, slots=True)
class SpokenQuestion:
    """A question in its noise: codes ``[frames, K]`` and ``[frames, K]``, and the tokens that answer it."""

    codes: Codes
    strip: Codes
    answer: tuple[int, ...]


class Questions:
    """Spoken questions with one right answer each, asked side by side and answered greedily."""

    def __init__(self, questions: Sequence[SpokenQuestion], lm: LMSpec) -> None:
        """Ask these of models of this shape."""
        self._questions, self._lm = questions, lm

    def __len__(self) -> int:
        """How many there are."""
        return len(self._questions)

    def part(self, index: int, parts: int) -> Questions:
        """One of this number of parts, to be asked apart from the others."""
        return Questions(self._questions[index::parts], self._lm)

    def mark(self, judged: EvalModel) -> float:
        """See :class:`Examination`."""
        return sum(self.right(judged)) / len(self._questions)

    def right(self, judged: EvalModel) -> list[bool]:
        """Which of them are answered rightly, in their order."""
        rows, right = judged.backend.info.slots, list[bool]()
        for first in range(0, len(self._questions), rows):
            asked = self._questions[first : first + rows]
            right += [said == one.answer for said, one in zip(self._ask(judged, asked), asked, strict=True)]
        return right

    def _ask(self, judged: EvalModel, asked: Sequence[SpokenQuestion]) -> list[tuple[int, ...]]:
        frames = BEFORE_FRAMES + max(len(one.codes) for one in asked) + AFTER_FRAMES
        heard = np.stack([np.take(one.strip, np.arange(frames), axis=0, mode="wrap") for one in asked])
        for row, one in enumerate(asked):
            heard[row, BEFORE_FRAMES : BEFORE_FRAMES + len(one.codes)] = one.codes
        said = judged.answer(heard, [GREEDY] * len(asked))[:, :, 0]
        silent = (self._lm.text_padding_id, self._lm.text_end_padding_id)
        return [tuple(int(token) for token in row if token not in silent) for row in said]


def read_questions(folder: Path, lm: LMSpec, tokenizer: Tokenizer, most: int) -> Questions:
    """At most ``most`` questions of a folder, chosen evenly by a fixed seed.

    Raises:
        ConfigError: there are none.
        CheckpointFormatError: a shard that is not as it should be.
    """
    found = [one for path in sorted(folder.glob("*.npz")) for one in _read_shard(path, lm, tokenizer)]
    if not found:
        raise ConfigError(f"{folder} holds no questions (*.npz)")
    order = np.random.default_rng(0).permutation(len(found))[:most]
    return Questions([found[index] for index in sorted(order)], lm)


def _read_shard(path: Path, lm: LMSpec, tokenizer: Tokenizer) -> list[SpokenQuestion]:
    try:
        with np.load(path) as shard:
            codes, strips = shard["codes"].astype(np.int64), shard["strips"].astype(np.int64)
            parts = np.split(codes, shard["ends"][:-1], axis=1)
            scenes = np.repeat(np.arange(len(shard["sizes"])), shard["sizes"])
            answers = [answer for *_, answer in json.loads(str(shard["told"]))]
    except (OSError, KeyError, ValueError) as error:
        raise CheckpointFormatError(f"{path} is no shard of questions: {error}") from error
    heard = lm.n_q - lm.dep_q
    if len(codes) != heard:
        raise CheckpointFormatError(f"{path} has {len(codes)} codebooks, the model hears {heard}")
    return [
        SpokenQuestion(part.T, strips[scene].T, tuple(tokenizer.encode(answer)))
        for part, scene, answer in zip(parts, scenes, answers, strict=True)
    ]
