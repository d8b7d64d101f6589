"""An independent recogniser: Debian's pocketsphinx, with or without a grammar of the domain."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sphn
from numpy.typing import NDArray

from lab.train.domain import COLOURS, DAYS, FIXED_ANSWERS, MONTHS, NUMBERS, REFUSAL, SOUNDS
from lab.train.phrasings import PHRASINGS
from lab.train.synthetic_voices import SAMPLE_RATE
from tests.support.caller import loud_at

MODEL = Path("/usr/share/pocketsphinx/model/en-us")
ENGLISH = MODEL / "en-us.lm.bin"
"""Its own language model."""
RECOGNISER_RATE = 16_000
PADDING_S = 0.3


def _rule(name: str, alternatives: Sequence[str], *, public: bool = False) -> str:
    return f"{'public ' if public else ''}<{name}> = {' | '.join(alternatives)} ;\n"


def answers_grammar() -> str:
    """Return a JSGF grammar of every answer's form: any number may replace a number."""
    animals = [("an " if a[0] in "aeiou" else "a ") + a for a in SOUNDS]
    return (
        "#JSGF V1.0;\ngrammar answers;\n"
        + _rule("n", NUMBERS)
        + _rule("day", DAYS)
        + _rule("month", MONTHS)
        + _rule("thing", list(COLOURS))
        + _rule("colour", sorted(set(COLOURS.values())))
        + _rule("animal", animals)
        + _rule("cry", list(SOUNDS.values()))
        + _rule(
            "answer",
            [
                "<n> plus <n> is <n>",
                "<n> minus <n> is <n>",
                "<n> <n> <n> [<n>] [<n>] [<n>]",
                "<thing> is <colour>",
                "<animal> says <cry>",
                "after <day> comes <day>",
                "after <month> comes <month>",
                *FIXED_ANSWERS.values(),
                REFUSAL,
            ],
            public=True,
        )
    )


def questions_grammar() -> str:
    """Return a JSGF grammar of every phrasing without words around it, and of every held-out phrasing."""
    slots = {"add": ("<n>", "<n>"), "subtract": ("<n>", "<n>"), "count": ("<n>", "<n>")}
    named = {"colour": "<thing>", "sound": "<animal>", "next": "<when>"}
    asked = []
    for intent, phrasings in PHRASINGS.items():
        a, b = slots.get(intent, (named.get(intent, ""), ""))
        asked += [
            phrase.format(a=a, b=b, way="( up | down )", unit="( day | month )")
            for phrase in phrasings.plain + phrasings.held_out
        ]
    return (
        "#JSGF V1.0;\ngrammar questions;\n"
        + _rule("n", NUMBERS)
        + _rule("when", [*DAYS, *MONTHS])
        + _rule("thing", list(COLOURS))
        + _rule("animal", [("an " if a[0] in "aeiou" else "a ") + a for a in SOUNDS])
        + _rule("question", asked, public=True)
    )


def without_silence(sound: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the audible part of ``sound [samples]``, and a tenth of a second around it.

    The recogniser takes seconds of a codec's silence for words, or fails.
    """
    loud, margin = loud_at(sound), SAMPLE_RATE // 10
    return sound[max(0, loud[0] - margin) : loud[-1] + margin] if loud.size else sound


def recognise(clips: Sequence[NDArray[np.float32]], grammar: str | None = None) -> list[str]:
    """Return the recogniser's text of each clip, float32 ``[samples]`` at 24 kHz; empty if it finds no words.

    It uses a JSGF grammar, or general English.

    Silence before and after is cut off first.

    Raises:
        subprocess.CalledProcessError: pocketsphinx failed.
        FileNotFoundError: it is not installed (Debian: pocketsphinx and pocketsphinx-en-us).
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "domain.gram").write_text(grammar or "")
        for index, pcm in enumerate(clips):
            padded = np.pad(without_silence(pcm), int(PADDING_S * SAMPLE_RATE)).astype(np.float32)
            low = sphn.resample(padded[None], src_sample_rate=SAMPLE_RATE, dst_sample_rate=RECOGNISER_RATE)
            samples = (low[0].clip(-1, 1) * 32767).astype("<i2")
            samples = samples + np.random.default_rng(index).integers(-4, 5, samples.size).astype("<i2")
            (folder / f"{index}.raw").write_bytes(samples.tobytes())
        (folder / "clips.txt").write_text("".join(f"{index}\n" for index in range(len(clips))))
        command = ["pocketsphinx_batch", "-hmm", MODEL / "en-us", "-dict", MODEL / "cmudict-en-us.dict"]
        command += ["-lm", ENGLISH] if grammar is None else ["-jsgf", folder / "domain.gram"]
        command += ["-adcin", "yes", "-cepext", ".raw"]
        command += ["-cepdir", folder, "-ctl", folder / "clips.txt", "-hyp", folder / "heard.txt"]
        command += ["-remove_silence", "no", "-logfn", "/dev/null"]
        subprocess.run([str(part) for part in command], check=True, capture_output=True)
        heard = dict.fromkeys(range(len(clips)), "")
        for line in (folder / "heard.txt").read_text().splitlines():
            words, _, tail = line.rpartition("(")
            heard[int(tail.split()[0])] = words.strip()
        return [heard[index] for index in range(len(clips))]


def word_errors(said: str, heard: str) -> int:
    """Return the number of words to insert, delete or replace to turn one sentence into the other
    (Levenshtein)."""
    target, row = heard.split(), list(range(len(heard.split()) + 1))
    for i, word in enumerate(said.split(), 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(target, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]
