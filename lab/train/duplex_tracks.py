"""Tracks of one side of a conversation with known times: questions, pauses, interruptions, long speech.

All speech is in held-out voices and phrasings; every second track has held-out surroundings.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from lab.train import held_out as kept
from lab.train.domain import Domain
from lab.train.music import music
from lab.train.noises import NOISES
from lab.train.outside import ABROAD, Outside
from lab.train.phrasings import PHRASINGS
from lab.train.questions import Utterance, trim
from lab.train.recordings import pieces
from lab.train.surroundings import Surroundings
from lab.train.synthetic_voices import SAMPLE_RATE, Voice, draw_voice, speak

LEAD_S, LISTEN_S = 1.0, 5.0
LEVEL: Final = 0.6
PAUSES_S: Final = (0.4, 0.8, 1.2)
INTERRUPTS_AFTER_S: Final = 1.7
BREATH_S: Final = 0.3
LONG_S: Final = 10.0
EMPTY_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class Track:
    """A talker's input ``pcm [samples]``, and the seconds in which the parts of speech start and end.

    ``kind`` is the kind of speech; ``right`` the answer to its last part, ``voice`` the speaker. ``around``
    names the noise, the room and the line.
    """

    kind: str
    pcm: FloatArray
    parts: tuple[tuple[float, float], ...]
    right: str
    voice: str
    is_clean: bool = True
    around: tuple[str, ...] = ()

    @property
    def end_s(self) -> float:
        """The end of the speech in the track, in seconds; 0 without speech."""
        return self.parts[-1][1] if self.parts else 0.0


def _silence(seconds: float) -> FloatArray:
    return np.zeros(int(seconds * SAMPLE_RATE), np.float32)


def _track(
    kind: str,
    sounds: Sequence[FloatArray],
    gaps_s: Sequence[float],
    right: str,
    voice: str,
    seed: int,
) -> Track:
    """Sounds with silences of ``gaps_s`` between them, and time to answer; odd seeds with surroundings."""
    parts, pieces, at = list[tuple[float, float]](), [_silence(LEAD_S)], LEAD_S
    for sound, gap_s in zip(sounds, [*gaps_s, LISTEN_S], strict=True):
        length_s = sound.size / SAMPLE_RATE
        parts.append((at, at + length_s))
        pieces += [sound * np.float32(LEVEL), _silence(gap_s)]
        at += length_s + gap_s
    pcm, around = np.concatenate(pieces), tuple[str, ...]()
    if seed % 2:
        rng = np.random.default_rng((23, seed))
        loudness = LEVEL * float(np.sqrt(np.mean(np.concatenate(sounds) ** 2)))
        surroundings = Surroundings.drawn(rng, held_out=True)
        pcm, around = surroundings.heard(rng, pcm, loudness), surroundings.kinds
    return Track(kind, pcm.astype(np.float32), tuple(parts), right, voice, seed % 2 == 0, around)


def questions(utterances: Sequence[Utterance]) -> list[Track]:
    """Return separate turns: questions of the domain, and other speech."""
    return [
        _track(one.turn.intent, [one.pcm], [], one.turn.answer, f"{one.voice.name} {one.voice.bending}", seed)
        for seed, one in enumerate(utterances)
    ]


def recorded(recordings: Mapping[str, FloatArray]) -> list[Track]:
    """Return unchanged pieces of recordings, each a turn to be refused."""
    return [
        _track(one.turn.intent, [one.pcm], [], one.turn.answer, one.voice.name, 2 * seed)
        for seed, one in enumerate(pieces(recordings))
    ]


def interruptions(utterances: Sequence[Utterance], count: int) -> list[Track]:
    """Return tracks with a question that has a long answer, and another question during the answer."""
    rng = random.Random(4)
    long = [one for one in utterances if one.turn.intent == "count" and len(one.turn.answer.split()) >= 5]
    others = [one for one in utterances if one.turn.intent in ("add", "subtract", "colour")]
    if not long or not others:
        return []
    pairs = [(rng.choice(long), rng.choice(others)) for _ in range(count)]
    return [
        _track("interruption", [a.pcm, b.pcm], [INTERRUPTS_AFTER_S], b.turn.answer, b.voice.name, seed)
        for seed, (a, b) in enumerate(pairs)
    ]


def paused(count: int, threads: int = 2) -> list[Track]:
    """Return questions with a pause before the last two words."""
    rng, domain = random.Random(5), Domain()
    asked: list[tuple[Voice, str, str, str]] = []
    for _ in range(count):
        intent = rng.choice(("add", "subtract", "count"))
        fact = rng.choice(domain.facts[intent])
        words = rng.choice(PHRASINGS[intent].held_out).format(**fact.slots).split()
        voice = draw_voice(rng, held_out=True)
        asked.append((voice, " ".join(words[:-2]), " ".join(words[-2:]), fact.answer))
    with ThreadPoolExecutor(threads) as pool:
        first = list(pool.map(lambda one: trim(speak(one[0], one[1])), asked))
        second = list(pool.map(lambda one: trim(speak(one[0], one[2])), asked))
    return [
        _track("pause", [a, b], [PAUSES_S[seed % len(PAUSES_S)]], one[3], one[0].name, seed)
        for seed, (a, b, one) in enumerate(zip(first, second, asked, strict=True))
    ]


def long_speech(count: int, threads: int = 2) -> list[Track]:
    """Return tracks of ten seconds or more in which a speaker asks nothing and pauses only for a breath."""
    rng = random.Random(6)
    plans: list[tuple[Voice, list[str]]] = []
    while len(plans) < count:
        turns = [Outside(held_out=True).draw(rng) for _ in range(6)]
        voice = next((voice for turn, voice in turns if turn.intent != ABROAD), None)
        if voice is not None:
            plans.append((voice, [turn.question for turn, _ in turns if turn.intent != ABROAD]))
    tracks = []
    with ThreadPoolExecutor(threads) as pool:
        for seed, (voice, texts) in enumerate(plans):
            said = list(pool.map(lambda text, voice=voice: trim(speak(voice, text)), texts))
            enough = [
                index for index in range(len(said)) if sum(map(len, said[:index])) < LONG_S * SAMPLE_RATE
            ]
            sounds = [said[index] for index in enough]
            tracks.append(
                _track("long speech", sounds, [BREATH_S] * (len(sounds) - 1), "", voice.name, 2 * seed)
            )
    return tracks


def without_speech(count: int) -> list[Track]:
    """Return alternately music and noise that training does not have."""
    tracks, samples = [], int(EMPTY_S * SAMPLE_RATE)
    for seed in range(count):
        rng = np.random.default_rng((29, seed))
        if seed % 2:
            pcm = music(rng, samples, held_out=True) * rng.uniform(0.1, 0.6)
        else:
            pcm = NOISES[kept.NOISES[seed // 2 % len(kept.NOISES)]](rng, samples) * rng.uniform(0.01, 0.1)
        kind = "music" if seed % 2 else "noise"
        tracks.append(Track(kind, pcm.clip(-1, 1).astype(np.float32), (), "", ""))
    return tracks
