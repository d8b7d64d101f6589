"""Makes the clips of the clients, with espeak-ng and flite (Debian packages of those names).

Usage: python lab/tools/make_clips.py [FOLDER]

The same versions of the two programs make the same bytes: espeak-ng 1.51 and flite 2.2 made the current ones.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sphn
from numpy.typing import NDArray

FOLDER = Path(__file__).parents[2] / "clients" / "antiphon_client" / "clips"
SAMPLE_RATE = 24_000
PAUSE_S = 0.4
RMS = 0.1
PEAK = 0.9


@dataclass(frozen=True, slots=True)
class Line:
    """One spoken line: the program that speaks it, the program's name for the voice, and the words."""

    program: str
    voice: str
    words: str

    def command(self, wav: Path) -> list[str]:
        """Return the command that speaks this line into a WAV file."""
        if self.program == "flite":
            return ["flite", "-voice", self.voice, "-t", self.words, "-o", str(wav)]
        return ["espeak-ng", "-v", self.voice, "-s", "150", "-w", str(wav), self.words]


QUESTIONS = {
    "question-colour": (Line("espeak-ng", "en-us+f5", "What colour is the sky"),),
    "question-count": (Line("flite", "rms", "Count from three to seven"),),
    "question-cow": (Line("espeak-ng", "en-us+f5", "What does a cow say"),),
    "question-name": (Line("flite", "rms", "What is your name"),),
    "question-plus": (Line("espeak-ng", "en-us+f5", "What is two plus two"),),
    "question-snow": (Line("espeak-ng", "en-us+f5", "What colour is snow"),),
    "question-sum": (Line("flite", "rms", "What is five plus four"),),
    "question-tomato": (Line("flite", "rms", "What colour is a tomato"),),
}
"""Questions that the built-in model can answer, in voices that are not in its training."""
CLIPS = QUESTIONS | {
    "hello": (
        Line("flite", "slt", "Hello. This is a recorded voice, in pieces of eighty milliseconds."),
        Line("flite", "slt", "Each piece is answered before the next one."),
        Line("flite", "slt", "If you hear this, none was lost."),
    ),
    "two-voices": (
        Line("flite", "rms", "Good morning. Is this the second voice?"),
        Line("espeak-ng", "en-gb+f3", "It is. I came a little later, and took the next free row."),
        Line("flite", "rms", "Then we are on the same beat."),
        Line("espeak-ng", "en-gb+f3", "And neither hears the other."),
    ),
}


def speak(line: Line, folder: Path) -> NDArray[np.float32]:
    """Speak a line; returns float32 ``[samples]`` at 24 kHz."""
    wav = folder / "line.wav"
    subprocess.run(line.command(wav), check=True, stdout=subprocess.DEVNULL)
    pcm, sample_rate = sphn.read(str(wav))
    return np.asarray(sphn.resample(pcm, int(sample_rate), SAMPLE_RATE)[0], dtype=np.float32)


def level(pcm: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the speech at the common loudness of the clips, with peaks below full scale."""
    gain = RMS / float(np.sqrt(np.mean(np.square(pcm))))
    return (pcm * min(gain, PEAK / float(np.abs(pcm).max()))).astype(np.float32)


def join(lines: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Join lines one after the other, with a pause around each."""
    pause = np.zeros(round(PAUSE_S * SAMPLE_RATE), np.float32)
    return np.concatenate([pause, *(part for line in lines for part in (line, pause))])


def main(argv: list[str]) -> int:
    folder = Path(argv[0]) if argv else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, lines in CLIPS.items():
            pcm = join([level(speak(line, Path(scratch))) for line in lines])
            path = folder / f"{name}.ogg"
            sphn.write_opus(str(path), pcm, SAMPLE_RATE)
            print(f"{path}: {pcm.size / SAMPLE_RATE:.2f} s, {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
