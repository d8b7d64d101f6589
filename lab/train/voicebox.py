"""The talker's side of dialogues as codes: its words, and its silence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.train.answers import Answer
from lab.train.segments import FRAME_SAMPLES, CodeArray, encode
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer

LEAD_FRAMES = 1
"""Frames by which the text of an answer is ahead of its sound."""
TAIL_FRAMES = 4
COLD_FRAMES = 10
"""Frames encoded before an answer, and dropped with the codec's cold start."""


class Voicebox:
    """Each answer and silence, encoded once: codes ``[8, T]`` and text tokens ``[T]`` by sentence."""

    def __init__(
        self,
        silence: CodeArray,
        codes: dict[str, CodeArray],
        text: dict[str, NDArray[np.int16]],
        tokenizer: TalkerTokenizer,
    ) -> None:
        """``silence`` ``[8]`` is a frame of it."""
        self.silence, self.codes, self.text, self.tokenizer = silence, codes, text, tokenizer
        self._parts: dict[int, list[CodeArray]] = {}
        for sentence, tokens in text.items():
            for start, end in pairwise(words_at(tokens)):
                self._parts.setdefault(int(tokens[start]), []).append(codes[sentence][:, start:end])

    @classmethod
    def encoded(cls, mimi: Any, answers: dict[str, Answer], tokenizer: TalkerTokenizer) -> Voicebox:
        """Return the voicebox of spoken answers."""
        silence = encode(mimi, np.zeros((1, 50 * FRAME_SAMPLES), np.float32))[0]
        codes, text = {}, {}
        for sentence, answer in answers.items():
            frames = LEAD_FRAMES + answer.pcm.size // FRAME_SAMPLES + 1 + TAIL_FRAMES
            pcm = np.zeros((1, (COLD_FRAMES + frames) * FRAME_SAMPLES), np.float32)
            start = (COLD_FRAMES + LEAD_FRAMES) * FRAME_SAMPLES
            pcm[0, start : start + answer.pcm.size] = answer.pcm
            codes[sentence] = encode(mimi, pcm)[0][:, COLD_FRAMES:]
            text[sentence] = text_stream(answer, frames, tokenizer)
        return cls(silence[:, -1], codes, text, tokenizer)

    @classmethod
    def rounded_in(cls, path: Path, tokenizer: TalkerTokenizer) -> Voicebox:
        """Read the file that :meth:`keep` wrote."""
        with np.load(path) as kept:
            sentences = [str(one) for one in kept["sentences"]]
            ends = kept["ends"][:-1]
            codes = dict(zip(sentences, np.split(kept["codes"], ends, axis=1), strict=True))
            text = dict(zip(sentences, np.split(kept["text"], ends), strict=True))
            return cls(kept["silence"], codes, text, tokenizer)

    def keep(self, path: Path) -> None:
        """Write the voicebox: a megabyte, with which a trainer begins without synthesis or encoding."""
        part = path.with_suffix(".part.npz")
        np.savez(
            part,
            sentences=np.array(list(self.codes)),
            ends=np.cumsum([text.size for text in self.text.values()]),
            codes=np.concatenate(list(self.codes.values()), axis=1),
            text=np.concatenate(list(self.text.values())),
            silence=self.silence,
        )
        part.replace(path)

    def has_said(self, tokens: Sequence[int]) -> bool:
        """Return whether every one of these words occurs in an answer, and not only at its end."""
        return self._parts.keys() >= set(tokens)

    def put_together(
        self, tokens: Sequence[int], rng: np.random.Generator
    ) -> tuple[CodeArray, NDArray[np.int16]]:
        """Compose another text from pieces of answers; returns its sound ``[8, T]`` and its text ``[T]``.

        It ends with its last word, whose sound is never used.
        """
        parts = [self._parts[token][int(rng.integers(len(self._parts[token])))] for token in tokens[:-1]]
        places = np.cumsum([0, *(part.shape[1] for part in parts)])
        text = np.full(int(places[-1]) + 1, PAD, np.int16)
        text[places[1:] - 1] = EPAD
        text[places] = tokens
        return np.concatenate([*parts, self.silence[:, None]], axis=1), text


def text_stream(answer: Answer, frames: int, tokenizer: TalkerTokenizer) -> NDArray[np.int16]:
    """Return the text tokens ``[frames]`` of an answer whose first word is in frame 0."""
    text, previous = np.full(frames, PAD, np.int16), -1
    for word, start_s in zip(answer.words, answer.starts_s, strict=True):
        for token in tokenizer.encode(word):
            at = max(previous + 1, int(start_s * 12.5))
            if at - 1 > previous:
                text[at - 1] = EPAD
            text[at], previous = token, at
    return text


def words_at(text: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return the frames of ``text [T]`` that have a word."""
    return np.flatnonzero((text != PAD) & (text != EPAD))
