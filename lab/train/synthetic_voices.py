"""The synthetic voices of the corpus: espeak-ng, flite, festival, RHVoice, Pico, and Praat's modifications.

The first three are Debian's packages of those names, festival's voices festvox-kdlpc16k and
festvox-us-slt-hts. The tests use only the voices of lab.train.held_out, which also need festvox-kallpc16k and
freetts. Optional are RHVoice, its program RHVoice-test with the voices Bdl and Clb and, for Russian,
Aleksandr, Anna, Elena and Irina, and SVOX Pico, from Debian's package libttspico-utils (non-free).
"""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import sphn
from numpy.typing import NDArray

from lab.train import held_out as kept
from lab.train.bendings import BENDINGS
from lab.train.throats import Throat

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
    "caleb",
    "grandpa",
    "iven4",
    "zac",
    "croak",
    "steph2",
    "Nguyen",
    "AnxiousAndy",
    "RicishayMax",
    "RicishayMax2",
    "RicishayMax3",
)
FLITE = ("slt", "awb")
"""Of its other voices "rms" is held out, and "kal16" is made of the recordings of "kal_diphone" and
"kevin16"."""
FESTIVAL = {"ked_diphone": "festvox-kdlpc16k", "cmu_us_slt_arctic_hts": "festvox-us-slt-hts"}
"""Voices, and their packages."""
HELD_OUT_FESTIVAL = {"kal_diphone": "festvox-kallpc16k"}
FREETTS_JARS = ("freetts", "en_us", "cmu_us_kal", "cmulex", "cmudict04")
FREETTS_FOLDER = Path("/usr/share/java")
FREETTS_PROGRAM = "com.sun.speech.freetts.FreeTTS"
FREETTS_VOICES = "com.sun.speech.freetts.en.us.cmu_us_kal.KevinVoiceDirectory"
RHVOICE = ("bdl", "clb")
RHVOICE_RUSSIAN = ("aleksandr", "anna", "elena", "irina")
PICO = ("en-US", "en-GB")
FURTHER: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"rhvoice": RHVOICE, "pico": PICO})
"""Synthesisers that training uses on request, and their voices."""
FURTHER_SHARE = 0.3
"""Share of training's voices for each requested one, of the share that earlier ones leave."""
OTHER_LANGUAGES = ("fr-fr", "de", "es", "it", "pl", "pt", "nl", "sv", "ru", "hi", "cmn", "tr")
"""Used over English letters for sounds that English lacks, only in training of the codec."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A synthetic voice with its speed, its pitch and its modifications.

    ``program`` is espeak-ng, flite, festival, rhvoice, pico or freetts; ``pitch`` is 0 to 99, with 50 for its
    own. ``bending`` is a name of lab.train.bendings, only in tests; "" leaves the voice unchanged.
    """

    program: str
    name: str
    words_per_minute: int = 160
    pitch: int = 50
    throat: Throat | None = None
    bending: str = ""

    @classmethod
    def read(cls, told: dict[str, Any]) -> Voice:
        """Return the voice from the values of ``dataclasses.asdict``."""
        throat = told.get("throat")
        return cls(**{**told, "throat": throat and Throat(**throat)})

    def command(self, text: str, wav: Path) -> list[str]:
        """Return the command that speaks ``text`` into ``wav``; festival also writes its phones.

        RHVoice's command reads the text from its standard input.
        """
        if self.program == "rhvoice":
            rate, pitch = self.of_its_own
            of_its_own = ["-r", f"{100 * rate:.0f}", "-t", f"{100 * pitch:.0f}"]
            return ["RHVoice-test", "-p", self.name, *of_its_own, "-o", str(wav)]
        if self.program == "pico":
            rate, pitch = self.of_its_own
            marked = (
                f"<pitch level='{100 * pitch:.0f}'><speed level='{100 * rate:.0f}'>{text}</speed></pitch>"
            )
            return ["pico2wave", "-l", self.name, "-w", str(wav), marked]
        if self.program == "festival":
            return ["festival", "-b", self._festival(text, wav)]
        if self.program == "freetts":
            path = ":".join(str(FREETTS_FOLDER / f"{name}.jar") for name in FREETTS_JARS)
            java = ["java", f"-Dfreetts.voices={FREETTS_VOICES}", "-cp", path, FREETTS_PROGRAM]
            return [*java, "-voice", self.name, "-dumpAudio", str(wav), "-text", text]
        if self.program == "flite":
            stretch = f"duration_stretch={160 / self.words_per_minute:.3f}"
            bent = f"int_f0_target_mean={120 * 2 ** ((self.pitch - 50) / 50):.0f}"
            melody = [] if self.pitch == 50 else ["--setf", bent]
            return ["flite", "-voice", self.name, "--setf", stretch, *melody, "-t", text, "-o", str(wav)]
        manner = ["-s", str(self.words_per_minute), "-p", str(self.pitch)]
        return ["espeak-ng", "-v", self.name, *manner, "-w", str(wav), text]

    @property
    def of_its_own(self) -> tuple[float, float]:
        """The speed and the pitch as multiples of the voice's own speed and pitch, in whole percents."""
        return round(self.words_per_minute / 160, 2), round(2 ** ((self.pitch - 50) / 50), 2)

    def _festival(self, text: str, wav: Path) -> str:
        """The same as a program of festival's; only its diphone voices apply speed and pitch."""
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        mean = 105 * 2 ** ((self.pitch - 50) / 50)
        melody = f"(target_f0_mean {mean:.0f}) (target_f0_std 14) (model_f0_mean 170) (model_f0_std 34)"
        return f"""(begin (voice_{self.name})
            (Parameter.set 'Duration_Stretch {160 / self.words_per_minute:.3f})
            (set! int_lr_params '({melody}))
            (set! said (utt.synth (Utterance Text "{quoted}")))
            (utt.save.wave said "{wav}")
            (utt.save.segs said "{wav.with_suffix(".phones")}"))"""


def draw_voice(
    rng: random.Random, *, held_out: bool = False, foreign: bool = False, further: Sequence[str] = ()
) -> Voice:
    """Draw a random voice of training, including the voices of ``further`` synthesisers, or a held-out
    voice."""
    if held_out:
        return _held_out_voice(rng)
    for program in further:
        if rng.random() < FURTHER_SHARE:
            name, throat = rng.choice(FURTHER[program]), Throat.drawn(rng) if rng.random() < 0.6 else None
            return Voice(program, name, rng.randint(125, 200), rng.randint(20, 80), throat)
    speed, pitch, kind = rng.randint(125, 200), rng.randint(20, 80), rng.random()
    if kind < 0.5 and not foreign:
        program, name = (
            ("flite", rng.choice(FLITE)) if kind < 0.4 else ("festival", rng.choice(tuple(FESTIVAL)))
        )
        throat = Throat.drawn(rng) if rng.random() < 0.7 else None
        return Voice(program, name, speed, pitch, throat)
    accent = rng.choice(OTHER_LANGUAGES if foreign else ACCENTS)
    throat = Throat.drawn(rng) if rng.random() < 0.3 else None
    return Voice("espeak-ng", f"{accent}+{rng.choice(VARIANTS)}", speed, pitch, throat)


def _held_out_voice(rng: random.Random) -> Voice:
    """A voice of the tests: every third is modified in a way that training does not have."""
    bending = rng.choice(kept.BENDINGS) if rng.random() < 1 / 3 else ""
    kind, speed, pitch = rng.random(), rng.randint(125, 200), rng.randint(20, 80)
    if kind < 0.5:
        variant = rng.choice(kept.VOICES["espeak-ng"])
        return Voice("espeak-ng", f"{rng.choice(ACCENTS)}+{variant}", speed, pitch, bending=bending)
    program = "flite" if kind < 0.7 else "festival" if kind < 0.85 else "freetts"
    return Voice(program, rng.choice(kept.VOICES[program]), speed, bending=bending)


def require_speakers(voices: Path = Path("/usr/share/festival/voices")) -> None:
    """Check that every program and voice of Debian's that training needs exists, before hours of work.

    Raises:
        SystemExit: one is missing; the message has the command that installs it.
    """
    missing = [program for program in ("espeak-ng", "flite", "festival") if shutil.which(program) is None]
    missing += [package for name, package in FESTIVAL.items() if not any(voices.glob(f"*/{name}"))]
    _refuse_without(missing)


def require_pico() -> None:
    """Check that SVOX Pico exists.

    Raises:
        SystemExit: it is missing.
    """
    if shutil.which("pico2wave") is None:
        raise SystemExit(
            "not installed: pico2wave; apt-get install libttspico-utils (Debian's non-free), or omit --pico"
        )


def require_held_out_speakers(voices: Path = Path("/usr/share/festival/voices")) -> None:
    """Check that the voices of the tests exist, before hours of work need one of them.

    Raises:
        SystemExit: one is missing; the message has the command that installs it.
    """
    missing = [program for program in ("espeak-ng", "flite", "festival") if shutil.which(program) is None]
    missing += [package for name, package in HELD_OUT_FESTIVAL.items() if not any(voices.glob(f"*/{name}"))]
    if not all((FREETTS_FOLDER / f"{name}.jar").exists() for name in FREETTS_JARS):
        missing.append("freetts")
    if shutil.which("java") is None:
        missing.append("default-jre-headless")
    _refuse_without(missing)


def _refuse_without(missing: list[str]) -> None:
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)}; apt-get install {' '.join(missing)}")


def speak(voice: Voice, text: str) -> NDArray[np.float32]:
    """Speak a text; returns float32 ``[samples]`` at 24 kHz, peak 0.7.

    Raises:
        subprocess.CalledProcessError: the synthesiser failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "speech.wav"
        subprocess.run(voice.command(text, wav), input=text.encode(), check=True, capture_output=True)
        pcm, rate = sphn.read(str(wav))
    mono = pcm.mean(axis=0).astype(np.float32)
    if voice.throat is not None:
        mono = voice.throat.bent(mono, rate)
    if voice.bending:
        mono = BENDINGS[voice.bending](mono, rate)
    if rate != SAMPLE_RATE:
        mono = sphn.resample(mono[None], src_sample_rate=rate, dst_sample_rate=SAMPLE_RATE)[0]
    peak = float(np.abs(mono).max(initial=0.0))
    scaled: NDArray[np.float32] = mono if peak == 0 else (mono * (0.7 / peak)).astype(np.float32)
    return scaled
