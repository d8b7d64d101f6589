"""Makes the answers of a voice (by default the talker's, flite's "slt") word by word, with the time at which
each word starts.

Fixed answers are spoken whole. The others are put together as in a speaking clock: each word at the start, in
the middle or at the end of a sentence always has the same sound, whatever words follow. Melody and timing of
a whole spoken sentence reveal its end at its beginning, and a model with its own output as input would then
learn to read its answer from its own voice, not from the question.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon.arrays import FloatArray
from lab.train.domain import FIXED_ANSWERS, REFUSAL, Domain
from lab.train.questions import trim
from lab.train.synthetic_voices import SAMPLE_RATE, Voice, speak

VOICE = Voice("flite", "slt")
LOUDNESS = 0.12
"""Root mean square of an answer."""
JOIN_SAMPLES = 120
"""Samples of the cross-fade between neighbouring words, 5 ms."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A spoken answer: float32 ``pcm [samples]`` that starts with the first word, and the start of each
    word."""

    words: tuple[str, ...]
    starts_s: tuple[float, ...]
    pcm: FloatArray


def _phones(text: str, voice: Voice) -> list[tuple[str, float]]:
    """flite's phones of a text with the time in seconds at which each ends, including pauses."""
    command = ["flite", "-voice", voice.name, "-t", text, "-psdur", "-o", "/dev/null"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pairs = (item.rsplit(":", 1) for item in said.split())
    return [(phone, float(end)) for phone, end in pairs]


def _phone_count(word: str, voice: Voice) -> int:
    return sum(phone != "pau" for phone, _ in _phones(word, voice))


def word_starts_s(
    words: tuple[str, ...], counts: Mapping[str, int], voice: Voice = VOICE
) -> tuple[float, ...]:
    """Return when each word starts in a sentence that is spoken whole, by counting phones.

    ``counts`` are the phones of each word spoken separately. If the sentence has more or fewer of them, the
    words share them in proportion.
    """
    starts, previous_end = [], 0.0
    for phone, end in _phones(" ".join(words), voice):
        if phone != "pau":
            starts.append(previous_end)
        previous_end = end
    before = np.cumsum([0] + [counts[word] for word in words[:-1]])
    total = sum(counts[word] for word in words)
    places = [min(len(starts) - 1, round(int(n) * len(starts) / total)) for n in before]
    return tuple(starts[place] for place in places)


def _place(index: int, words: Sequence[str]) -> str:
    return "start" if index == 0 else "end" if index == len(words) - 1 else "middle"


class Speaker:
    """A speaker of sentences made of the words of given sentences, in one of flite's voices."""

    def __init__(self, sentences: Iterable[str], threads: int = 2, voice: Voice = VOICE) -> None:
        self._threads = threads
        carriers: dict[tuple[str, str], tuple[str, ...]] = {}
        for sentence in sorted(set(sentences)):
            words = tuple(sentence.split())
            for index, word in enumerate(words):
                carriers.setdefault((_place(index, words), word), words)
        whole = [tuple(sentence.split()) for sentence in (*FIXED_ANSWERS.values(), REFUSAL)]
        needed = sorted({*carriers.values(), *whole})
        vocabulary = sorted({word for words in needed for word in words})
        with ThreadPoolExecutor(threads) as pool:
            phones = pool.map(lambda word: _phone_count(word, voice), vocabulary)
            counts = dict(zip(vocabulary, phones, strict=True))
            starts = dict(
                zip(needed, pool.map(lambda words: word_starts_s(words, counts, voice), needed), strict=True)
            )
            sounds = dict(
                zip(needed, pool.map(lambda words: speak(voice, " ".join(words)), needed), strict=True)
            )
        self._whole = {" ".join(words): _whole(words, starts[words], sounds[words]) for words in whole}
        self._pieces: dict[tuple[str, str], FloatArray] = {}
        for (place, word), words in carriers.items():
            index = 0 if place == "start" else len(words) - 1 if place == "end" else words.index(word, 1)
            self._pieces[place, word] = _cut(index, starts[words], sounds[words])

    def say(self, sentence: str) -> Answer:
        """Return the sound of a sentence, and the start of each word.

        Raises:
            KeyError: a word is in none of the speaker's sentences.
        """
        if sentence in self._whole:
            return self._whole[sentence]
        words = tuple(sentence.split())
        pieces = [self._piece(_place(index, words), word) for index, word in enumerate(words)]
        pcm, starts_s = pieces[0], [0.0]
        for piece in pieces[1:]:
            starts_s.append((pcm.size - JOIN_SAMPLES) / SAMPLE_RATE)
            pcm = _joined(pcm, piece)
        return Answer(words, tuple(starts_s), _levelled(pcm))

    def _piece(self, place: str, word: str) -> FloatArray:
        for other in (place, "middle", "end", "start"):
            if (other, word) in self._pieces:
                return self._pieces[other, word]
        raise KeyError(word)


def _levelled(pcm: FloatArray) -> FloatArray:
    scaled = pcm * (LOUDNESS / float(np.sqrt(np.mean(pcm**2))))
    return scaled.clip(-1, 1).astype(np.float32)


def _whole(words: tuple[str, ...], starts_s: tuple[float, ...], pcm: FloatArray) -> Answer:
    sound = trim(pcm)
    return Answer(words, tuple(start - starts_s[0] for start in starts_s), _levelled(sound))


def _cut(index: int, starts_s: tuple[float, ...], pcm: FloatArray) -> FloatArray:
    """One word of a sentence, with the length of a join more at its end; a last word without its silence."""
    start = int(starts_s[index] * SAMPLE_RATE)
    if index == len(starts_s) - 1:
        return trim(pcm[start:])
    return pcm[start : int(starts_s[index + 1] * SAMPLE_RATE) + JOIN_SAMPLES]


def _joined(left: FloatArray, right: FloatArray) -> FloatArray:
    """Two sounds cross-faded over the join."""
    fade = np.linspace(0, 1, JOIN_SAMPLES, dtype=np.float32)
    middle = left[-JOIN_SAMPLES:] * (1 - fade) + right[:JOIN_SAMPLES] * fade
    return np.concatenate([left[:-JOIN_SAMPLES], middle, right[JOIN_SAMPLES:]])


def speak_answers(sentences: Iterable[str], threads: int = 2, voice: Voice = VOICE) -> dict[str, Answer]:
    """Speak every sentence; returns the answer of each sentence, with its sound and times."""
    speaker = Speaker(Domain().answers(), threads, voice)
    return {sentence: speaker.say(sentence) for sentence in sorted(set(sentences))}


def answers_kept_in(path: Path, sentences: Iterable[str]) -> dict[str, Answer]:
    """Return the spoken sentences, from ``path`` if they are stored there, else spoken and stored."""
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
    """Return the length of an answer in seconds."""
    return answer.pcm.size / SAMPLE_RATE
