"""What a telephone line costs a talker: questions answered rightly at 24 kHz, and as G.711 mu-law at 8 kHz.

    python -m lab.train.questions --held-out --shards 1 --out out/train/questions-test
    python -m lab.bench.telephone_answers out/train/questions-test

The questions of the built-in model's test, clean, each asked alone; mu-law goes through the codec and the
resampler of ``/v1/live/sessions``, in frames of 20 ms. The model takes the likeliest token.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from antiphon.audio.g711 import Law
from antiphon.audio.pcm import FloatArray
from antiphon.backends.base import Backend, StepInputs
from antiphon.backends.onnx.factory import make
from antiphon.models.catalog import load_checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon.models.tokenizer import Tokenizer
from antiphon.serve.media.line import LineDecoder, LineEncoder, LineFormat
from lab.bench.harness import Values
from lab.train.evaluate import balanced, held_out_questions
from lab.train.questions import Utterance

FRAME = 1920
PACKET = 480
LEVEL = 0.6
ROWS = 8
LEAD_FRAMES, LISTEN_FRAMES = 12, 62  # a second before, five after


def by_telephone(pcm: FloatArray) -> FloatArray:
    """The samples that the model hears of a caller with mu-law."""
    line = LineFormat(8_000, Law.MU)
    encoder, decoder = LineEncoder(line, 24_000), LineDecoder(line, 24_000)
    packets = [pcm[start : start + PACKET] for start in range(0, pcm.size, PACKET)]
    heard = np.concatenate([decoder.feed(encoder.encode(packet)) for packet in packets])
    return np.pad(heard, (0, pcm.size - heard.size))


def as_heard(utterance: Utterance, *, telephone: bool) -> FloatArray:
    """A question with silence around it, float32 ``[frames, 1920]``."""
    asked = np.pad(utterance.pcm * LEVEL, (LEAD_FRAMES * FRAME, LISTEN_FRAMES * FRAME)).astype(np.float32)
    whole = np.pad(asked, (0, -asked.size % FRAME))
    return (by_telephone(whole) if telephone else whole).reshape(-1, FRAME)


def answers(backend: Backend, tokenizer: Tokenizer, calls: Sequence[FloatArray]) -> list[str]:
    """What the model says in text to calls that are heard at once, each in a row of its own."""
    texts = ["" for _ in calls]
    for index in range(max(len(call) for call in calls)):
        rows = [row for row, call in enumerate(calls) if index < len(call)]
        pcm = np.stack([calls[row][index] for row in rows])
        outputs = backend.step(StepInputs(np.array(rows, np.int32), np.full(len(rows), index == 0), pcm))
        assert outputs.text_tokens is not None
        for row, emitted, token in zip(rows, outputs.emitted, outputs.text_tokens, strict=True):
            if emitted:
                texts[row] += tokenizer.piece(int(token))
    return texts


def measure(questions: Path, per_intent: int) -> Values:
    """Right answers each way."""
    checkpoint = load_checkpoint("tiny")
    tokenizer = checkpoint.text_tokenizer()
    assert tokenizer is not None
    backend = make(checkpoint, slots=ROWS, threads=1)
    sampling = SamplingParameters.from_generation(checkpoint.generation)
    for row in range(ROWS):
        backend.set_parameters(row, replace(sampling, text_temperature=0.0, audio_temperature=0.0))
    asked = balanced(held_out_questions(questions), per_intent)
    right = {}
    for name, telephone in (("24_khz", False), ("mu_law_8_khz", True)):
        texts: list[str] = []
        for start in range(0, len(asked), ROWS):
            group = asked[start : start + ROWS]
            texts += answers(backend, tokenizer, [as_heard(one, telephone=telephone) for one in group])
        right[name] = sum(
            text.split() == one.turn.answer.split() for text, one in zip(texts, asked, strict=True)
        )
    return {"questions": len(asked), **right}


if __name__ == "__main__":
    folder, *more = sys.argv[1:]
    sys.stdout.write(json.dumps(measure(Path(folder), int(more[0]) if more else 24)) + "\n")
