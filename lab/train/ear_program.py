"""Transcribe speech with Whisper, in a separate environment: see lab.train.ear.

Usage: ENVIRONMENT/bin/python lab/train/ear_program.py MODEL SOUNDS THREADS

SOUNDS is float32 at 16 kHz in an .npz, with a name for each; the output is a JSON list of texts in that
order.
"""

from __future__ import annotations

import json
import sys

import faster_whisper
import numpy as np


def main(model: str, sounds: str, threads: str) -> int:
    """Transcribe every sound, and print the texts."""
    whisper = faster_whisper.WhisperModel(
        model, device="cpu", compute_type="int8", cpu_threads=int(threads), local_files_only=True
    )
    texts = []
    with np.load(sounds) as clips:
        for name in clips.files:
            pieces, _ = whisper.transcribe(
                clips[name], language="en", condition_on_previous_text=False, without_timestamps=True
            )
            texts.append(" ".join(piece.text.strip() for piece in pieces))
    sys.stdout.write(json.dumps(texts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
