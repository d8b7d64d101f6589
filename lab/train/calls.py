"""The calls of the evaluation: questions, silence and noise, and interruptions, with their results."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphon.arrays import FloatArray
from lab.train.answers import speak_answers
from lab.train.augment import add_noise, coloured_noise
from lab.train.phrasings import PHRASINGS
from lab.train.questions import Utterance
from lab.train.recogniser import answers_grammar, recognise, word_errors
from tests.support.caller import FRAME_SAMPLES, STEP_SAMPLES, call, loud_at

Note = Callable[[int, int], None]
RATE = 24_000
LISTEN_S = 5.0
QUESTIONS_PER_CALL = 6
SNR_DB = 20.0


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one question: the answer in text and sound, and its delay after the question's end (None:
    no answer)."""

    utterance: Utterance
    is_noisy: bool
    text: str
    sound: FloatArray
    latency_ms: float | None


async def _ask(server: str, group: Sequence[tuple[Utterance, bool]], seed: int) -> list[Result]:
    """One call with several questions, five seconds apart; noisy ones have noise 20 dB below speech."""
    rng = np.random.default_rng(seed)
    parts: list[FloatArray] = [np.zeros(RATE, np.float32)]
    places, at = [], RATE
    for one, is_noisy in group:
        clean = np.concatenate([one.pcm, np.zeros(int(LISTEN_S * RATE), np.float32)])
        if is_noisy:
            noise = coloured_noise(rng, clean.size, 1.0)
            clean[: one.pcm.size] = add_noise(one.pcm, noise[: one.pcm.size], SNR_DB)
            clean[one.pcm.size :] = noise[one.pcm.size :] * float(np.std(one.pcm)) * 10 ** (-SNR_DB / 20)
        parts.append(clean.astype(np.float32) * 0.6)
        places.append((at + one.pcm.size, at + clean.size))
        at += clean.size
    pcm = np.concatenate(parts)
    heard = await call(server, np.pad(pcm, (0, -pcm.size % FRAME_SAMPLES)).astype(np.float32))
    results = []
    for (one, is_noisy), (end, stop) in zip(group, places, strict=True):
        sound = heard.pcm[end:stop]
        loud = loud_at(sound)
        # An audible stretch may begin in a lost frame: it sounds with the next.
        heard_s = min((heard.heard_at_s(end + int(at)) for at in loud[:2]), default=np.inf)
        after_s = heard_s - heard.said_at_s(end) if np.isfinite(heard_s) else None
        text = heard.text(end // FRAME_SAMPLES, stop // FRAME_SAMPLES)
        results.append(Result(one, is_noisy, text, sound, None if after_s is None else after_s * 1000))
    return results


async def ask_all(server: str, asked: Sequence[Utterance], callers: int, note: Note) -> list[Result]:
    """Ask all questions, ``callers`` calls at a time; every second question is noisy."""
    marked = [(one, index % 2 == 1) for index, one in enumerate(asked)]
    groups = [marked[at : at + QUESTIONS_PER_CALL] for at in range(0, len(marked), QUESTIONS_PER_CALL)]
    results: list[Result] = []
    for at in range(0, len(groups), callers):
        batch = [_ask(server, group, at + i) for i, group in enumerate(groups[at : at + callers])]
        for part in await asyncio.gather(*batch):
            results += part
        note(len(results), len(asked))
    return results


async def stay_quiet(server: str, minutes: float, callers: int) -> dict[str, Any]:
    """Send silence, then noise of several loudnesses; returns how often the talker spoke anyway."""
    samples = int(minutes * 60 * RATE / callers) // FRAME_SAMPLES * FRAME_SAMPLES
    sounds: list[FloatArray] = []
    for index in range(callers):
        rng = np.random.default_rng(index)
        level = 0.0 if index == 0 else 10 ** (-(20 + 12 * index) / 20)
        sounds.append((coloured_noise(rng, samples, index % 3) * level).clip(-1, 1).astype(np.float32))
    heard = await asyncio.gather(*[call(server, sound) for sound in sounds])
    false = 0
    for one in heard:
        loud = loud_at(one.pcm)
        false += int(loud.size > 0) + int((np.diff(loud) > RATE).sum())
    return {"minutes": minutes, "false_answers": false, "words": sum(len(one.words) for one in heard)}


async def _interrupt(server: str, first: Utterance, second: Utterance) -> float | None:
    """Ask, and ask another question 1.2 s after the answer began; returns the milliseconds until it was
    silent."""
    lead = np.zeros(RATE, np.float32)
    after = int(1.7 * RATE)
    tail = np.zeros(int(LISTEN_S * RATE), np.float32)
    pcm = np.concatenate([lead, first.pcm, np.zeros(after, np.float32), second.pcm, tail]) * 0.6
    heard = await call(server, np.pad(pcm, (0, -pcm.size % FRAME_SAMPLES)).astype(np.float32))
    start = lead.size + first.pcm.size + after
    loud = loud_at(heard.pcm[: start + second.pcm.size + 2 * FRAME_SAMPLES])
    if not loud.size or not ((loud > start - RATE // 2) & (loud < start)).any():
        return None
    last = start
    for at in loud[loud >= start]:
        if at - last > RATE * 0.3:
            break
        last = int(at)
    return (heard.heard_at_s(last + STEP_SAMPLES) - heard.said_at_s(start)) * 1000


async def interrupt_all(
    server: str, utterances: Sequence[Utterance], count: int, callers: int, note: Note
) -> dict[str, Any]:
    """Interrupt long answers, and return the results. Calls whose answer was not in progress when interrupted
    do not count."""
    rng = random.Random(4)
    long = [one for one in utterances if one.turn.intent == "count" and len(one.turn.answer.split()) >= 5]
    others = [one for one in utterances if one.turn.intent in ("add", "subtract", "colour")]
    pairs = [(rng.choice(long), rng.choice(others)) for _ in range(count)]
    times: list[float | None] = []
    for at in range(0, count, callers):
        times += await asyncio.gather(*(_interrupt(server, a, b) for a, b in pairs[at : at + callers]))
        note(len(times), count)
    counted = [one for one in times if one is not None]
    return {
        "calls": count,
        "interrupted": len(counted),
        "stopped_within_500_ms": round(sum(one <= 500 for one in counted) / max(1, len(counted)), 4),
        "median_ms": round(statistics.median(counted), 1) if counted else None,
    }


def answers_report(results: Sequence[Result]) -> dict[str, Any]:
    """Report the correct answers in text per intent, clean and noisy, and the latency to the first sound."""

    def share(some: Sequence[Result]) -> dict[str, Any]:
        right = sum(one.text == one.utterance.turn.answer for one in some)
        return {"asked": len(some), "right": right, "share": round(right / max(1, len(some)), 4)}

    latencies = [one.latency_ms for one in results if one.latency_ms is not None]
    wrong = [one for one in results if one.text != one.utterance.turn.answer]
    return {
        "all": share(results),
        "clean": share([one for one in results if not one.is_noisy]),
        "noise_20_db": share([one for one in results if one.is_noisy]),
        "by_intent": {
            intent: share([one for one in results if one.utterance.turn.intent == intent])
            for intent in PHRASINGS
        },
        "by_voice": {
            name: share([one for one in results if one.utterance.voice.name.split("+")[-1] == name])
            for name in sorted({one.utterance.voice.name.split("+")[-1] for one in results})
        },
        "latency_ms": {
            "median": round(float(np.median(latencies)), 1) if latencies else None,
            "p90": round(float(np.percentile(latencies, 90)), 1) if latencies else None,
        },
        "wrong": [
            {"question": one.utterance.turn.question, "voice": one.utterance.voice.name, "said": one.text}
            for one in wrong
        ],
    }


def spoken_report(results: Sequence[Result]) -> dict[str, Any]:
    """Report the share of the talker's words that a recogniser finds in the talker's audio, with bounds."""
    spoken = [one for one in results if one.text == one.utterance.turn.answer]
    said = [one.text for one in spoken]
    grammar = answers_grammar()
    own_voice = speak_answers(said)

    def share(texts: Sequence[str], heard: Sequence[str]) -> float:
        words = sum(len(text.split()) for text in texts)
        wrong = sum(
            min(len(text.split()), word_errors(text, other)) for text, other in zip(texts, heard, strict=True)
        )
        return round(1 - wrong / max(1, words), 4)

    heard = recognise([one.sound for one in spoken], grammar)
    return {
        "answers": len(said),
        "words_understood": share(said, heard),
        "original_voice": share(said, recognise([own_voice[text].pcm for text in said], grammar)),
        "chance": share(said, heard[len(heard) // 2 :] + heard[: len(heard) // 2]),
    }
