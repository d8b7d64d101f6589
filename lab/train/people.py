"""Speech of people from lab.train.material: numbers joined to sums, digits, and speech outside the domain.

It is used only for tests, not for training: see lab.train.held_out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.audio.files import read_audio
from lab.train import held_out as kept
from lab.train.domain import NUMBERS, REFUSAL, Domain, Turn
from lab.train.ear import in_words
from lab.train.material import PEOPLE, Material
from lab.train.natural import LOUDNESS
from lab.train.outside import RECORDED
from lab.train.questions import Utterance, trim
from lab.train.synthetic_voices import SAMPLE_RATE, Voice

GAP_S: Final = 0.12
"""Silence between joined words, as in slow speech."""
DIGITS_GAP_S: Final = 0.25
DIGITS_IN_A_ROW: Final = 4
SIGNS: Final = {"add": "letters/plus", "subtract": "digits/minus"}
SHORTEST_S, LONGEST_S = 1.2, 6.0
"""Length of prompts that are used as turns."""


def _heard(path: Path) -> FloatArray:
    pcm = trim(read_audio(path))
    even: FloatArray = (pcm * (LOUDNESS / max(1e-6, float(np.sqrt(np.mean(pcm**2)))))).clip(-1, 1)
    return even.astype(np.float32)


def _joined(sounds: Sequence[FloatArray], gap_s: float) -> tuple[FloatArray, tuple[float, ...]]:
    """Concatenate sounds with gaps; also returns the start of each in seconds."""
    gap = np.zeros(int(gap_s * SAMPLE_RATE), np.float32)
    parts = list(chain.from_iterable((gap, sound) for sound in sounds))[1:]
    starts = np.cumsum([0, *(sound.size + gap.size for sound in sounds)])[:-1] / SAMPLE_RATE
    return np.concatenate(parts).astype(np.float32), tuple(map(float, starts))


def _voice(name: str) -> Voice:
    return Voice(kept.PEOPLE, name)


def sums(material: Material, count: int) -> list[Utterance]:
    """Return questions like "five plus four" made of a person's recorded numbers; every second question is a
    difference."""
    rng, domain = random.Random(11), Domain()
    folder = material.people("en")
    words = {word: _heard(folder / "digits" / f"{value}.wav") for value, word in enumerate(NUMBERS)}
    signs = {intent: _heard(folder / f"{path}.wav") for intent, path in SIGNS.items()}
    utterances = []
    for index in range(count):
        intent, sign = (("add", "plus"), ("subtract", "minus"))[index % 2]
        fact = rng.choice(domain.facts[intent])
        a, b = fact.slots["a"], fact.slots["b"]
        pcm, starts = _joined([words[a], signs[intent], words[b]], GAP_S)
        turn = Turn(intent, f"{a} {sign} {b}", fact.answer, is_held_out=True)
        utterances.append(Utterance(turn, _voice("allison"), 1.0, pcm, starts))
    return utterances


def digits(material: Material, count: int) -> list[Utterance]:
    """Return utterances of four digits in a row, by six speakers in turn."""
    rng, takes = random.Random(12), dict[str, list[Path]]()
    for path in sorted(material.digits.glob("*.wav")):
        takes.setdefault(path.stem.split("_")[1], []).append(path)
    utterances = []
    for index in range(count):
        speaker = sorted(takes)[index % len(takes)]
        chosen = rng.sample(takes[speaker], DIGITS_IN_A_ROW)
        pcm, starts = _joined([_heard(path) for path in chosen], DIGITS_GAP_S)
        text = " ".join(NUMBERS[int(path.stem.split("_")[0])] for path in chosen)
        utterances.append(Utterance(Turn("words", text, "", True), _voice(speaker), 1.0, pcm, starts))
    return utterances


def prompts(material: Material, languages: Sequence[str], count: int) -> list[Utterance]:
    """Return speech outside the domain: prompts of 1.2 to 6 s in these languages, alternating, with one
    speaker for each language."""
    rng, utterances = random.Random(13), list[Utterance]()
    texts = english_texts(material)
    found = {
        language: rng.sample(paths, len(paths))
        for language in languages
        for paths in [sorted(material.people(language).glob("*.wav"))]
    }
    for index in range(count):
        language = languages[index % len(languages)]
        while True:
            path = found[language].pop()
            pcm = _heard(path)
            text = texts.get(path.stem, "") if language == "en" else ""
            if SHORTEST_S < pcm.size / SAMPLE_RATE < LONGEST_S and (text or language != "en"):
                break
        turn = Turn(RECORDED, text, REFUSAL, is_held_out=True)
        utterances.append(Utterance(turn, _voice(language), 1.0, pcm))
    return utterances


def english_texts(material: Material) -> dict[str, str]:
    """Return the text of each English prompt in the domain's spelling, except prompts of sounds."""
    lines = (material.people("en") / "texts.txt").read_text().splitlines()
    pairs = (line.split(": ", 1) for line in lines if ": " in line and not line.startswith(";"))
    domain = Domain()
    texts = {name: in_words(text) for name, text in pairs if "[" not in text}
    return {name: text for name, text in texts.items() if not domain.is_question(text)}


ABROAD: Final = tuple(language for language in PEOPLE if language != "en")
