"""Measures the effect of a telephone line on a talker: correct answers at 24 kHz, and as G.711 mu-law at 8
kHz.

    python -m lab.train.questions --held-out --shards 1 --out out/train/questions-test
    python -m lab.bench.telephone_answers out/train/questions-test

The questions are those of the built-in model's test, clean, each asked separately; mu-law uses the codec and
the resampler of ``/v1/live/sessions``, in frames of 20 ms. The model samples greedily.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from antiphon.audio.codecs import WireFormat, make_decoder, make_encoder
from antiphon.audio.pcm import FloatArray
from lab.bench.harness import Values
from lab.train.evaluate import balanced, held_out_questions
from lab.train.questions import Utterance
from lab.train.rows import Talker

FRAME = 1920
PACKET = 480
LEVEL = 0.6
ROWS = 8
LEAD_FRAMES, LISTEN_FRAMES = 12, 62  # a second before, five after


def by_telephone(pcm: FloatArray) -> FloatArray:
    """Return the samples that the model receives from a caller with mu-law."""
    wire = WireFormat("pcmu", 8_000)
    encoder, decoder = make_encoder(wire), make_decoder(wire)
    packets = [pcm[start : start + PACKET] for start in range(0, pcm.size, PACKET)]
    heard = np.concatenate([decoder.feed(*encoder.encode(packet)) for packet in packets])
    return np.pad(heard, (0, pcm.size - heard.size))


def as_heard(utterance: Utterance, *, telephone: bool) -> FloatArray:
    """Return a question with silence around it, as the model receives it, float32 ``[samples]``."""
    asked = np.pad(utterance.pcm * LEVEL, (LEAD_FRAMES * FRAME, LISTEN_FRAMES * FRAME)).astype(np.float32)
    whole = np.pad(asked, (0, -asked.size % FRAME))
    return by_telephone(whole) if telephone else whole


def measure(questions: Path, per_intent: int) -> Values:
    """Count the questions, and the correct answers at 24 kHz and by telephone."""
    talker = Talker("tiny", "onnx", ROWS)
    asked = balanced(held_out_questions(questions), per_intent)
    right = {}
    for name, telephone in (("24_khz", False), ("mu_law_8_khz", True)):
        replies = talker.listen([as_heard(one, telephone=telephone) for one in asked])
        right[name] = sum(reply.text() == one.turn.answer for reply, one in zip(replies, asked, strict=True))
    return {"questions": len(asked), **right}


if __name__ == "__main__":
    folder, *more = sys.argv[1:]
    sys.stdout.write(json.dumps(measure(Path(folder), int(more[0]) if more else 24)) + "\n")
