"""Measures the quality of the small codec: STOI on held-out voices, and the words that survive the round
trip."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon.arrays import FloatArray
from antiphon.models.catalog import load_checkpoint
from antiphon_quantize.gate_sound import stoi
from lab.train.codec import FRAME_SAMPLES, load_mimi
from lab.train.phrasings import PHRASINGS
from lab.train.questions import read_shard
from lab.train.recogniser import questions_grammar, recognise, word_errors
from lab.train.shards import shards_in

UTTERANCES = 100
COLD_SAMPLES, KEPT_SAMPLES = 24_000, 2_400
"""Silence before a sound, and the part of it that is kept."""


def folder_of(model: str) -> Path:
    """Return the folder of a model's codec."""
    return Path(load_checkpoint(model).files["mimi"]).parent


def round_trip(mimi: Any, pcm: FloatArray) -> FloatArray:
    """Return ``pcm``, float32 ``[samples]``, after encoding and decoding, in the same length."""
    frames = -(-pcm.size // FRAME_SAMPLES)
    padded = np.pad(pcm, (0, frames * FRAME_SAMPLES - pcm.size))
    with torch.no_grad():
        decoded: FloatArray = mimi.decode(mimi.encode(torch.from_numpy(padded)[None, None]))[0, 0].numpy()
    return decoded[: pcm.size]


def round_trip_from_silence(mimi: Any, pcm: FloatArray) -> FloatArray:
    """Return the round trip of a sound after a second of silence, so that the codec does not start cold;
    0.1 s of the silence is kept."""
    sound = round_trip(mimi, np.pad(pcm, (COLD_SAMPLES, COLD_SAMPLES // 2)).astype(np.float32))
    return sound[COLD_SAMPLES - KEPT_SAMPLES :]


def measure(
    codec: Path, speech: Path, questions: Path, recordings: Mapping[str, FloatArray]
) -> dict[str, Any]:
    """Measure STOI and word error; ``speech`` and ``questions`` are folders of held-out shards."""
    mimi = load_mimi(codec)
    mimi.eval()
    with np.load(shards_in(speech)[0]) as shard:
        parts = np.split(shard["pcm"], shard["ends"][:-1])[:UTTERANCES]
        clips = [(part / 32767).astype(np.float32) for part in parts]
    asked = [one for one in read_shard(shards_in(questions)[0]) if one.turn.intent in PHRASINGS][:UTTERANCES]
    decoded = [round_trip(mimi, one.pcm) for one in asked]
    grammar, words = questions_grammar(), sum(len(one.turn.question.split()) for one in asked)

    def error(sounds: list[FloatArray]) -> float:
        heard = recognise(sounds, grammar)
        wrong = sum(word_errors(one.turn.question, text) for one, text in zip(asked, heard, strict=True))
        return round(wrong / words, 4)

    return {
        "stoi_sentences": _stoi([(clip, round_trip(mimi, clip)) for clip in clips]),
        "stoi_questions": _stoi([(one.pcm, sound) for one, sound in zip(asked, decoded, strict=True)]),
        "stoi_recordings": {name: _stoi([(pcm, round_trip(mimi, pcm))]) for name, pcm in recordings.items()},
        "words": words,
        "word_error_original": error([one.pcm for one in asked]),
        "word_error_round_trip": error(decoded),
    }


def _stoi(pairs: list[tuple[FloatArray, FloatArray]]) -> float:
    return round(float(np.mean([stoi(clean, coded, 24_000) for clean, coded in pairs])), 4)
