"""The synthetic voices of the corpus: espeak-ng and flite (Debian packages of those names)."""

from __future__ import annotations

import random
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sphn
from numpy.typing import NDArray

SAMPLE_RATE = 24_000

ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-029", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd")
VARIANTS = (
    "Alex",
    "Alicia",
    "Andrea",
    "Andy",
    "Annie",
    "Denis",
    "Diogo",
    "Gene",
    "Gene2",
    "Henrique",
    "Hugo",
    "Jacky",
    "Lee",
    "Marco",
    "Mario",
    "Michael",
    "Mike",
    "adam",
    "anika",
    "announcer",
    "antonio",
    "aunty",
    "belinda",
    "benjamin",
    "boris",
    "david",
    "ed",
    "edward",
    "f1",
    "f2",
    "f3",
    "f4",
    "gustave",
    "iven",
    "iven2",
    "john",
    "linda",
    "m1",
    "m2",
    "m3",
    "m4",
    "m5",
    "m6",
    "m8",
    "marcelo",
    "max",
    "michel",
    "miguel",
    "norbert",
    "pablo",
    "paul",
    "pedro",
    "quincy",
    "rob",
    "robert",
    "sandro",
    "shelby",
    "steph",
    "travis",
    "victor",
    "klatt",
    "klatt2",
    "klatt3",
    "klatt4",
)
HELD_OUT_VARIANTS = ("f5", "m7", "iven3", "steph3", "edward2", "grandma", "klatt5")
"""Variants that no training utterance uses."""
FLITE = ("slt", "awb", "kal16", "kal")
HELD_OUT_FLITE = ("rms",)
OTHER_LANGUAGES = ("fr-fr", "de", "es", "it", "pl", "pt", "nl", "sv", "ru", "hi", "cmn", "tr")
"""Spoken over English letters for sounds that English lacks; training of the codec only."""


@dataclass(frozen=True, slots=True)
class Voice:
    """One way of speaking: ``program`` is "espeak-ng" or "flite"; pitch is 0 to 99, 50 its own."""

    program: str
    name: str
    words_per_minute: int = 160
    pitch: int = 50

    def command(self, text: str, wav: Path) -> list[str]:
        """The command that speaks ``text`` into ``wav``."""
        if self.program == "flite":
            stretch = f"duration_stretch={160 / self.words_per_minute:.3f}"
            bent = f"int_f0_target_mean={120 * 2 ** ((self.pitch - 50) / 50):.0f}"
            melody = [] if self.pitch == 50 else ["--setf", bent]
            return ["flite", "-voice", self.name, "--setf", stretch, *melody, "-t", text, "-o", str(wav)]
        speed, pitch = str(self.words_per_minute), str(self.pitch)
        return ["espeak-ng", "-v", self.name, "-s", speed, "-p", pitch, "-w", str(wav), text]


def draw_voice(rng: random.Random, *, held_out: bool = False, foreign: bool = False) -> Voice:
    """A random voice of the training set, or of the held-out one."""
    speed, pitch = rng.randint(125, 200), rng.randint(20, 80)
    if rng.random() < 0.35:
        name = rng.choice(HELD_OUT_FLITE if held_out else FLITE)
        return Voice("flite", name, speed) if held_out else Voice("flite", name, speed, pitch)
    variant = rng.choice(HELD_OUT_VARIANTS if held_out else VARIANTS)
    accent = rng.choice(OTHER_LANGUAGES if foreign else ACCENTS)
    return Voice("espeak-ng", f"{accent}+{variant}", speed, pitch)


def speak(voice: Voice, text: str) -> NDArray[np.float32]:
    """Speech as float32 ``[samples]`` at 24 kHz, peak 0.7.

    Raises:
        subprocess.CalledProcessError: the synthesiser failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "speech.wav"
        subprocess.run(voice.command(text, wav), check=True, capture_output=True)
        pcm, rate = sphn.read(str(wav))
    mono = pcm.mean(axis=0).astype(np.float32)
    if rate != SAMPLE_RATE:
        mono = sphn.resample(mono[None], src_sample_rate=rate, dst_sample_rate=SAMPLE_RATE)[0]
    peak = float(np.abs(mono).max(initial=0.0))
    scaled: NDArray[np.float32] = mono if peak == 0 else (mono * (0.7 / peak)).astype(np.float32)
    return scaled
