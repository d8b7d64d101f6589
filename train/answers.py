"""The talker's own voice: every answer spoken once by flite's "slt", and when each word starts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from train.questions import trim
from train.voices import SAMPLE_RATE, Voice, speak

VOICE = Voice("flite", "slt")
LOUDNESS = 0.12
"""Root mean square of an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Spoken words: float32 ``pcm [samples]`` that starts with the first word, and each word's start."""

    words: tuple[str, ...]
    starts_s: tuple[float, ...]
    pcm: NDArray[np.float32]


def _phones(text: str) -> list[tuple[str, float]]:
    """flite's phones of a text with the time in seconds at which each ends, pauses included."""
    command = ["flite", "-voice", VOICE.name, "-t", text, "-psdur", "-o", "/dev/null"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pairs = (item.rsplit(":", 1) for item in said.split())
    return [(phone, float(end)) for phone, end in pairs]


def _phone_count(word: str) -> int:
    return sum(phone != "pau" for phone, _ in _phones(word))


def word_starts_s(words: tuple[str, ...], counts: Mapping[str, int]) -> tuple[float, ...]:
    """When each word of a sentence starts, from its first, by counting phones.

    ``counts`` are the phones of each word said alone. Where the sentence has more or fewer of them, the
    words share them in proportion.
    """
    starts, previous_end = [], 0.0
    for phone, end in _phones(" ".join(words)):
        if phone != "pau":
            starts.append(previous_end)
        previous_end = end
    before = np.cumsum([0] + [counts[word] for word in words[:-1]])
    total = sum(counts[word] for word in words)
    places = [min(len(starts) - 1, round(int(n) * len(starts) / total)) for n in before]
    return tuple(starts[place] - starts[0] for place in places)


def speak_answers(sentences: Iterable[str], threads: int = 2) -> dict[str, Answer]:
    """Speak every sentence; the result maps it to its sound and times."""
    wanted = sorted(set(sentences))
    vocabulary = sorted({word for sentence in wanted for word in sentence.split()})
    with ThreadPoolExecutor(threads) as pool:
        counts = dict(zip(vocabulary, pool.map(_phone_count, vocabulary), strict=True))

        def perform(sentence: str) -> Answer:
            words = tuple(sentence.split())
            pcm = trim(speak(VOICE, sentence))
            pcm = pcm * (LOUDNESS / float(np.sqrt(np.mean(pcm**2))))
            return Answer(words, word_starts_s(words, counts), pcm.clip(-1, 1).astype(np.float32))

        return dict(zip(wanted, pool.map(perform, wanted), strict=True))


def answers_kept_in(path: Path, sentences: Iterable[str]) -> dict[str, Answer]:
    """The spoken sentences, from ``path`` if they were kept there, else spoken and kept."""
    if not path.exists():
        spoken = speak_answers(sentences)
        part = path.with_suffix(".part.npz")
        np.savez(
            part,
            sentences=np.array(list(spoken)),
            starts_s=np.concatenate([answer.starts_s for answer in spoken.values()]),
            sizes=np.array([answer.pcm.size for answer in spoken.values()]),
            pcm=np.concatenate([answer.pcm for answer in spoken.values()]),
        )
        part.replace(path)
    with np.load(path) as kept:
        words = [tuple(str(sentence).split()) for sentence in kept["sentences"]]
        starts = np.split(kept["starts_s"], np.cumsum([len(one) for one in words])[:-1])
        pcm = np.split(kept["pcm"], np.cumsum(kept["sizes"])[:-1])
        return {
            " ".join(one): Answer(one, tuple(map(float, starts_s)), sound)
            for one, starts_s, sound in zip(words, starts, pcm, strict=True)
        }


def seconds(answer: Answer) -> float:
    """How long an answer lasts."""
    return answer.pcm.size / SAMPLE_RATE
