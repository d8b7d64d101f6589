"""A second independent recogniser, of general English: Whisper tiny.en, from lab.train.material.

It writes numbers as figures and uses American spelling. Its output is compared in the domain's spelling:
lower case, numbers as words.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import sphn

from antiphon.arrays import FloatArray
from lab.train.domain import NUMBERS
from lab.train.material import Material
from lab.train.recogniser import word_errors
from lab.train.synthetic_voices import SAMPLE_RATE

PROGRAM: Final = Path(__file__).with_name("ear_program.py")
EAR_RATE: Final = 16_000
TENS: Final = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SPELLED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "grey": "gray",
        "color": "colour",
        "+": "plus",
        "-": "minus",
        "=": "is",
        "equals": "is",
        "mu": "moo",
        "nay": "neigh",
        "b": "bee",
        "high": "hi",
        "for": "four",
        "too": "two",
        "won": "one",
    }
)
"""Homophones and signs in the domain's spelling."""


def in_words(text: str) -> str:
    """Convert the recogniser's output to the domain's spelling: "5 + 4 is 9." becomes "five plus four is
    nine"."""
    parts = re.findall(r"[a-z']+|\d+|[-+=]", text.lower())
    return " ".join(_number(int(part)) if part.isdigit() else SPELLED.get(part, part) for part in parts)


def _number(value: int) -> str:
    if value < len(NUMBERS):
        return NUMBERS[value]
    if value < 100:
        return f"{TENS[value // 10 - 2]} {NUMBERS[value % 10]}".removesuffix(" zero")
    return " ".join(NUMBERS[int(digit)] for digit in str(value))


@dataclass(frozen=True, slots=True)
class Ear:
    """The recogniser Whisper in a separate process, with a number of threads."""

    material: Material
    threads: int = 1

    def hear(self, clips: Sequence[FloatArray]) -> list[str]:
        """Transcribe each clip, float32 ``[samples]`` at 24 kHz, in the domain's spelling.

        Raises:
            SystemExit: the material lacks the recogniser. subprocess.CalledProcessError: its program failed.
        """
        folder = self.material.ear
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "sounds.npz"
            low = [
                sphn.resample(
                    _long_enough(clip)[None], src_sample_rate=SAMPLE_RATE, dst_sample_rate=EAR_RATE
                )[0]
                for clip in clips
            ]
            np.savez(path, **{f"{index:06d}": clip for index, clip in enumerate(low)})
            python = folder / "environment" / "bin" / "python"
            command = [python, PROGRAM, folder / "model", path, str(self.threads)]
            done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
        texts: list[str] = json.loads(done.stdout)
        return [in_words(text) for text in texts]


def _long_enough(clip: FloatArray) -> FloatArray:
    """A clip of half a second at least: the ear hears nothing in shorter ones, not even that it is silent."""
    return np.pad(clip, (0, max(0, SAMPLE_RATE // 2 - clip.size))).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Count:
    """The number of ``wrong`` items, and the number ``of`` all items."""

    wrong: int
    of: int

    @property
    def share(self) -> float:
        """The fraction of wrong items."""
        return round(self.wrong / max(1, self.of), 4)


def words_wrong(said: Sequence[str], heard: Sequence[str]) -> Count:
    """Count wrong words by edit distance, at most as many as were spoken, and the spoken words."""
    wrong = sum(min(len(a.split()), word_errors(a, b)) for a, b in zip(said, heard, strict=True))
    return Count(wrong, sum(len(text.split()) for text in said))
