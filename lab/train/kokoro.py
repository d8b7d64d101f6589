"""Speaks with Kokoro-82M, natural speech of 54 voices, and returns the start of each word.

The graph also returns the duration of each phoneme. It is deterministic: the same text and voice give the
same sound. The files are those of lab.train.material; espeak-ng turns text into phonemes.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.backends.onnx.sessions import onnxruntime
from lab.train import held_out as kept
from lab.train.material import DURATIONS
from lab.train.synthetic_voices import SAMPLE_RATE, Voice


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PROGRAM: Final = "kokoro"
"""The ``program`` of a :class:`Voice` of Kokoro; 160 words a minute is the voice's original speed."""
STEP_SAMPLES: Final = 600
"""Phoneme durations are multiples of 25 ms."""
STYLES: Final = (510, 1, 256)
"""Styles of a voice, one for each number of phonemes."""
MIXED: Final = "+"
"""Joins the names of voices that are mixed in equal parts."""
SPEAKERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "en-us": _names(
            """
            af_alloy af_aoede af_bella af_heart af_jessica af_kore af_nicole af_nova af_river af_sarah
            af_sky am_adam am_echo am_eric am_fenrir am_liam am_michael am_onyx am_puck am_santa
            """
        ),
        "en-gb": _names("bf_alice bf_emma bf_isabella bf_lily bm_daniel bm_fable bm_george bm_lewis"),
        "es": _names("ef_dora em_alex em_santa"),
        "fr-fr": _names("ff_siwis"),
        "hi": _names("hf_alpha hf_beta hm_omega hm_psi"),
        "it": _names("if_sara im_nicola"),
        "ja": _names("jf_alpha jf_gongitsune jf_nezumi jf_tebukuro jm_kumo"),
        "pt": _names("pf_dora pm_alex pm_santa"),
        "cmn-latn-pinyin": _names(
            "zf_xiaobei zf_xiaoni zf_xiaoxiao zf_xiaoyi zm_yunjian zm_yunxi zm_yunxia zm_yunyang"
        ),
    }
)
"""Voices by espeak-ng's name of their language."""
ENGLISH: Final = ("en-us", "en-gb")
PAIRS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "a^ɪ": "I",
        "a^ʊ": "W",
        "e^ɪ": "A",
        "ɔ^ɪ": "Y",
        "o^ʊ": "O",
        "ə^ʊ": "Q",
        "e^ə": "ɛː",
        "ə^l": "ᵊl",
        "t^ʃ": "ʧ",
        "d^ʒ": "ʤ",
        "t^s": "ʦ",
        "d^z": "ʣ",
        "t^ɕ": "ʨ",
        "d^ʑ": "ʥ",
    }
)
"""Phoneme pairs that Kokoro has as one symbol; espeak-ng is configured to join them with "^"."""
ENGLISH_SOUNDS: Final[Mapping[str, str]] = MappingProxyType(
    {"e": "A", "r": "ɹ", "x": "k", "ɐ": "ə", "ɚ": "əɹ", "ɬ": "l", "ʔ": "t", "ɾ": "T", "o": "ɔ"}
)
"""Other differences of espeak-ng's phonemes in English."""


def voices(language: str, *, held_out: bool) -> tuple[str, ...]:
    """Return the training voices of a language, or its held-out voices."""
    return tuple(name for name in SPEAKERS[language] if (name in kept.VOICES[PROGRAM]) == held_out)


def language_of(voice: str) -> str:
    """Return the language of a voice; of a mixture, that of the first voice.

    Raises:
        ValueError: there is no such voice.
    """
    first = voice.split(MIXED)[0]
    for language, names in SPEAKERS.items():
        if first in names:
            return language
    raise ValueError(f"Kokoro has no voice {first}")


def phonemes(text: str, language: str) -> str:
    """Return the phonemes of a text in Kokoro's notation, with a space between words that are spoken
    separately.

    Raises:
        subprocess.CalledProcessError: espeak-ng has no such language.
    """
    command = ["espeak-ng", "-q", "--ipa", "--tie=^", "-v", language, text]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    said = re.sub(r"\([a-z-]+\)", "", " ".join(said.split()))  # names of languages where it changes them
    for pair, sound in PAIRS.items():
        said = said.replace(pair, sound)
    said = said.replace("^", "")
    if language in ENGLISH:
        for own, sound in ENGLISH_SOUNDS.items():
            said = said.replace(own, sound)
        said = re.sub("(.)\u0329", r"ᵊ\1", said)
    if language == "en-us":
        said = said.replace("ɜːɹ", "ɜɹ").replace("ɜː", "ɜɹ").replace("ː", "")
    return said


def spoken_together(words: Sequence[str], parts: Sequence[str], language: str) -> list[int]:
    """Return the number of words in each phoneme group: espeak-ng joins "of the".

    Empty if the groups are ambiguous.
    """
    if len(words) == len(parts):
        return [1] * len(parts)
    counts, at = list[int](), 0
    while at < len(words):
        pair = " ".join(words[at : at + 2])
        together = at + 1 < len(words) and " " not in phonemes(pair, language)
        counts.append(2 if together else 1)
        at += counts[-1]
    return counts if len(counts) == len(parts) else []


@dataclass(frozen=True, slots=True)
class OutputFrame:
    """A synthesised sound, float32 ``pcm [samples]`` at 24 kHz, and the start of each word in seconds; no
    starts if unknown."""

    pcm: FloatArray
    starts_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A text in Kokoro's phonemes: ``tokens``, the first token of each group of words, and the words of each
    group."""

    tokens: tuple[int, ...]
    firsts: tuple[int, ...]
    words: tuple[str, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, text: str, language: str, symbols: Mapping[str, int], between: str = " ") -> Line:
        """Return the phonemes of ``text``; ``between`` are the symbols between words.

        Raises:
            ValueError: the text has no phoneme, or too many.
        """
        words, parts = text.split(), phonemes(text, language).split()
        sounds = [[symbols[one] for one in part if one in symbols] for part in parts]
        gap = [symbols[one] for one in between]
        tokens = [token for part in sounds for token in (*part, *gap)][: -len(gap)]
        if not 0 < len(tokens) < STYLES[0]:
            raise ValueError(f"{len(tokens)} phonemes in {text!r}, it must be 1 to {STYLES[0] - 1}")
        firsts = accumulate((len(part) + len(gap) for part in sounds), initial=0)
        return cls(tuple(tokens), tuple(firsts), tuple(words), tuple(spoken_together(words, parts, language)))

    def starts_s(self, lasting: FloatArray) -> tuple[float, ...]:
        """Return the starts of the words in seconds; ``lasting`` are the steps of the silence before the
        first token, of each token, and of the silence after the last token."""
        ends = np.cumsum(lasting) * STEP_SAMPLES / SAMPLE_RATE
        begun = [float(ends[min(first, ends.size - 1)]) for first in self.firsts]
        return tuple(_shared(begun, self.words, self.counts))


class Kokoro:
    """The synthesiser Kokoro in this process.

    Raises:
        SystemExit: its files are not in the folder.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
        self._symbols: dict[str, int] = json.loads((folder / "symbols.json").read_text())
        self._voices = folder / "voices"

    def speak(self, voice: Voice, text: str, between: str = " ") -> OutputFrame:
        """Synthesise ``text`` with a voice or the mean of several, modified by the voice's throat, if any.

        ``between`` are the symbols between words: ", " makes a list of them, with pauses.

        Raises:
            ValueError: there is no such voice, or the text is empty.
        """
        line = Line.of(text, language_of(voice.name), self._symbols, between)
        tokens = line.tokens
        style = np.mean([self._styles(name)[len(tokens)] for name in voice.name.split(MIXED)], axis=0)
        inputs = {
            "tokens": np.array([[0, *tokens, 0]], np.int64),
            "style": style.astype(np.float32),
            "speed": np.array([voice.of_its_own[0]], np.float32),
        }
        pcm, lasting = self._session.run(["audio", DURATIONS], inputs)
        said = OutputFrame(np.asarray(pcm, np.float32).reshape(-1), line.starts_s(lasting.reshape(-1)))
        return _bent(voice, said)

    def _styles(self, name: str) -> FloatArray:
        return np.fromfile(self._voices / f"{name}.bin", np.float32).reshape(STYLES)


def _shared(begun: Sequence[float], words: Sequence[str], counts: Sequence[int]) -> Iterator[float]:
    """Word starts; words that ``counts`` joins share their time in proportion to their letters."""
    at = 0
    for part, count in enumerate(counts):
        letters = list(accumulate((len(word) for word in words[at : at + count]), initial=0))
        for before in letters[:-1]:
            yield begun[part] + (begun[part + 1] - begun[part]) * before / letters[-1]
        at += count


def _bent(voice: Voice, said: OutputFrame) -> OutputFrame:
    if voice.throat is None:
        return said
    pcm = voice.throat.bent(said.pcm, SAMPLE_RATE)
    slower = pcm.size / said.pcm.size
    return OutputFrame(pcm, tuple(start * slower for start in said.starts_s))
