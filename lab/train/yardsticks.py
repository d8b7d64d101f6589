"""Measures the models on held-out natural voices and on people; the results are counts with their totals.

Talker and recogniser run in this process, with clean input except where stated. Natural speech is synthesised
once and kept; lab.train.material provides voices, recordings and the independent recogniser.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from antiphon.arrays import FloatArray
from lab.train import people
from lab.train.augment import coloured_noise
from lab.train.domain import REFUSAL
from lab.train.ear import Ear, words_wrong
from lab.train.kokoro import ENGLISH, PROGRAM, Kokoro, language_of, voices
from lab.train.material import Material
from lab.train.natural import SPEEDS, Planner, spoken
from lab.train.phrasings import PHRASINGS
from lab.train.questions import Utterance, read_shard, write_shard
from lab.train.rows import Recogniser, Reply, Talker, Written
from lab.train.synthetic_voices import SAMPLE_RATE, Voice

QUESTIONS: Final = 112
SUMS: Final = 150
DIGIT_ROWS: Final = 60
OUTSIDE_EACH: Final = 20
"""Number of utterances outside the domain: natural English, a person's English, people's four other
languages."""
PAUSES: Final = 21
LEAD_S, LISTEN_S = 1.0, 5.0
LEVEL: Final = 0.6
LONG_S: Final = 60.0
GAP_S: Final = 1.0
ROOM_DB: Final = -60.0
HEAD: Final = 2
"""Index of the probability of a pause of two seconds, which Unmute uses."""
LEAST: Final = 0.4
BEFORE_S, ZEROS_S, AFTER_S = 2.0, 1.0, 2.0
"""Seconds after a question in a room: its noise, exact zeros as with a muted microphone, its noise again."""


@dataclass(frozen=True, slots=True)
class Sets:
    """The utterances of all tests: ``natural`` and ``outside["natural"]`` in Kokoro's held-out voices, the
    others by people."""

    natural: list[Utterance]
    sums: list[Utterance]
    digits: list[Utterance]
    outside: dict[str, list[Utterance]]

    @classmethod
    def of(cls, material: Material, rounded_in: Path) -> Sets:
        """Return all sets; natural speech is read from the folder, or synthesised and stored there.

        Raises:
            SystemExit: the material lacks a part.
        """
        rounded_in.mkdir(parents=True, exist_ok=True)
        natural = _kept(rounded_in / "questions.npz", material, natural_questions())
        outside = _kept(rounded_in / "outside.npz", material, natural_outside())
        return cls(
            natural,
            people.sums(material, SUMS),
            people.digits(material, DIGIT_ROWS),
            {
                "natural": outside,
                "person": people.prompts(material, ("en",), OUTSIDE_EACH),
                "languages": people.prompts(material, people.ABROAD, OUTSIDE_EACH),
            },
        )


def natural_questions(count: int = QUESTIONS) -> list[tuple[Any, Voice]]:
    """Return held-out questions of every kind in every held-out English voice, alternating."""
    rng, planner, kinds = random.Random("yardstick"), Planner(held_out=True), list(PHRASINGS)
    names = [name for language in ENGLISH for name in voices(language, held_out=True)]
    return [
        (
            planner.draw(rng, kinds[index % len(kinds)])[0],
            Voice(PROGRAM, names[index % len(names)], round(160 * rng.uniform(*SPEEDS))),
        )
        for index in range(count)
    ]


def natural_outside(count: int = OUTSIDE_EACH) -> list[tuple[Any, Voice]]:
    """Return held-out turns outside the domain, in English and in languages with a held-out voice."""
    rng, planner = random.Random("yardstick outside"), Planner(held_out=True)
    return [planner.draw_outside(rng) for _ in range(count)]


def _kept(path: Path, material: Material, plans: Sequence[tuple[Any, Voice]]) -> list[Utterance]:
    if not path.exists():
        kokoro = Kokoro(material.kokoro)
        write_shard(path, [spoken(kokoro, turn, voice) for turn, voice in plans])
    return read_shard(path)


def _silence(seconds: float) -> FloatArray:
    return np.zeros(int(seconds * SAMPLE_RATE), np.float32)


def alone(one: Utterance, lead_s: float = LEAD_S, listen_s: float = LISTEN_S) -> FloatArray:
    """Return a turn after a silence, followed by time for the answer."""
    return np.concatenate([_silence(lead_s), one.pcm * np.float32(LEVEL), _silence(listen_s)])


def ask(talker: Talker, sets: Sets, ear: Ear) -> dict[str, Any]:
    """Measure the answers of a talker on all sets."""

    def said(some: Sequence[Utterance], lead_s: float = LEAD_S) -> list[Reply]:
        return talker.listen([alone(one, lead_s) for one in some])

    natural = said(sets.natural)
    languages = [language_of(one.voice.name) for one in sets.natural]
    return {
        "natural": answers(sets.natural, natural),
        "natural_by_language": _split(sets.natural, natural, languages),
        "natural_by_intent": _split(sets.natural, natural, [one.turn.intent for one in sets.natural]),
        "first_sample": answers(sets.natural, said(sets.natural, 0.0)),
        "sums": answers(sets.sums, said(sets.sums)),
        "outside": {kind: answers(some, said(some)) for kind, some in sets.outside.items()},
        "spoken": understood(sets.natural, natural, ear),
    }


def answers(asked: Sequence[Utterance], replies: Sequence[Reply]) -> dict[str, int]:
    """Count the questions, the correct, wrong and refusing answers, and the questions without an answer."""
    pairs = [(one.turn.answer, reply.text()) for one, reply in zip(asked, replies, strict=True)]
    is_refused = [bool(text) and set(text.split()) <= set(REFUSAL.split()) for _, text in pairs]
    silent = sum(not text for _, text in pairs)
    right = sum(text == answer != REFUSAL for answer, text in pairs)
    refused = sum(is_refused)
    return {
        "of": len(pairs),
        "right": right,
        "wrong": len(pairs) - right - refused - silent,
        "refused": refused,
        "silent": silent,
    }


def _split(
    asked: Sequence[Utterance], replies: Sequence[Reply], kinds: Sequence[str]
) -> dict[str, dict[str, int]]:
    table = {}
    for kind in dict.fromkeys(kinds):
        places = [place for place, one in enumerate(kinds) if one == kind]
        table[kind] = answers([asked[place] for place in places], [replies[place] for place in places])
    return table


def understood(asked: Sequence[Utterance], replies: Sequence[Reply], ear: Ear) -> dict[str, Any]:
    """Count the word errors of the independent recogniser on correct answers."""
    right = [reply for one, reply in zip(asked, replies, strict=True) if reply.text() == one.turn.answer]
    sounds = [reply.pcm[int((reply.words[0][0] - 0.1) * SAMPLE_RATE) :] for reply in right]
    wrong = words_wrong([reply.text() for reply in right], ear.hear(sounds))
    return {"answers": len(right), "words_wrong": wrong.wrong, "of": wrong.of, "share": wrong.share}


def write_down(
    recogniser: Recogniser, without_prefix: Recogniser, sets: Sets, ear: Ear | None = None
) -> dict[str, Any]:
    """Score the transcripts of a recogniser; ``without_prefix`` is this recogniser without silence before a
    track.

    With an independent recogniser, its scores on the same speech.
    """
    natural, sums, digits = sets.natural, sets.sums, sets.digits
    report: dict[str, Any] = {
        name: transcripts(some, recogniser.listen([alone(one, listen_s=2.0) for one in some]))
        for name, some in (("natural", natural), ("sums", sums), ("digits", digits))
    }
    at_once = [alone(one, 0.0, 2.0) for one in natural]
    report["first_sample"] = transcripts(natural, recogniser.listen(at_once))
    report["first_sample_without_prefix"] = transcripts(natural, without_prefix.listen(at_once))
    report["outside"] = {
        kind: {"of": len(some), "silent": sum(not one.words for one in written)}
        for kind, some in sets.outside.items()
        for written in [recogniser.listen([alone(one, listen_s=2.0) for one in some])]
    }
    for name, gap_s in (("without_a_pause", 0.0), ("with_pauses", GAP_S)):
        tracks = long_tracks(natural, gap_s)
        written = recogniser.listen([pcm for _, pcm in tracks])
        report[name] = compared([text for text, _ in tracks], written)
    report["pause_head"] = pause_head(recogniser, natural[:PAUSES])
    if ear is not None:
        report["ear"] = {
            name: words_wrong([one.turn.question for one in some], ear.hear([one.pcm for one in some])).share
            for name, some in (("natural", natural), ("sums", sums), ("digits", digits))
        }
    return report


def transcripts(said: Sequence[Utterance], written: Sequence[Written]) -> dict[str, Any]:
    """Count the word errors of transcribed turns."""
    return compared([one.turn.question for one in said], written)


def compared(texts: Sequence[str], written: Sequence[Written]) -> dict[str, Any]:
    """Count word errors, all words, and tracks without a transcript."""
    wrong = words_wrong(texts, [one.text for one in written])
    return {
        "tracks": len(texts),
        "empty": sum(not one.words for one in written),
        "words_wrong": wrong.wrong,
        "of": wrong.of,
        "share": wrong.share,
    }


def long_tracks(said: Sequence[Utterance], gap_s: float) -> list[tuple[str, FloatArray]]:
    """Return for each voice the text and the sound of 60 s of its questions, repeated, with gaps between
    them.

    With gaps the track has the same speech and is longer.
    """
    tracks = []
    for name in dict.fromkeys(one.voice.name for one in said):
        own = [one for one in said if one.voice.name == name]
        rng = random.Random(name)
        parts, texts, speech = [_silence(LEAD_S)], list[str](), 0
        while speech < LONG_S * SAMPLE_RATE:
            one = rng.choice(own)
            parts += [one.pcm * np.float32(LEVEL), _silence(gap_s)]
            texts.append(one.turn.question)
            speech += one.pcm.size
        tracks.append((" ".join(texts), np.concatenate([*parts, _silence(2.0)])))
    return tracks


def pause_head(recogniser: Recogniser, said: Sequence[Utterance]) -> dict[str, Any]:
    """Measure the lowest pause probability while a room's noise returns after zeros.

    Before the zeros the room lasts until the probability is high.
    """
    tracks, backs = [], []
    for seed, one in enumerate(said):
        sound = np.concatenate([alone(one, LEAD_S, BEFORE_S), _silence(ZEROS_S), _silence(AFTER_S)])
        noise = coloured_noise(np.random.default_rng((31, seed)), sound.size, 1.0) * 10 ** (ROOM_DB / 20)
        back = sound.size - int(AFTER_S * SAMPLE_RATE)
        noise[back - int(ZEROS_S * SAMPLE_RATE) : back] = 0
        tracks.append((sound + noise).astype(np.float32))
        backs.append(back)
    before, least = [], []
    for written, back in zip(recogniser.listen(tracks), backs, strict=True):
        frame = back // 1920
        head = written.pauses[:, HEAD]
        before.append(float(head[frame - 1]))
        least.append(float(head[frame : frame + int(AFTER_S * 12.5)].min()))
    return {
        "of": len(said),
        "above": sum(one > LEAST for one in least),
        "median_before": round(float(np.median(before)), 3),
        "median_least": round(float(np.median(least)), 3),
    }
