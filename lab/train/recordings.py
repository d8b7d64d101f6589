"""Recordings of people, for reports on the models' behaviour in evaluations; the repository has none of
them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from antiphon.arrays import FloatArray
from antiphon.audio.files import read_audio
from lab.train.domain import REFUSAL, Turn
from lab.train.outside import RECORDED
from lab.train.questions import Utterance
from lab.train.synthetic_voices import SAMPLE_RATE, Voice

LONGEST_S: Final = 30
PIECE_S: Final = 5
KINDS: Final = (".wav", ".mp3", ".flac", ".ogg")


def recordings_in(folder: Path | None) -> dict[str, FloatArray]:
    """Return speech at 24 kHz by file name, at most ``LONGEST_S`` seconds of each file; empty without a
    folder."""
    paths = [] if folder is None else [path for path in sorted(folder.iterdir()) if path.suffix in KINDS]
    return {path.name: read_audio(path)[: LONGEST_S * SAMPLE_RATE] for path in paths}


def pieces(recordings: Mapping[str, FloatArray]) -> list[Utterance]:
    """Return whole pieces of ``PIECE_S`` seconds, each a turn without a transcript."""
    size = PIECE_S * SAMPLE_RATE
    return [
        Utterance(
            Turn(RECORDED, "", REFUSAL, is_held_out=True), Voice("recording", name), 1.0, pcm[at : at + size]
        )
        for name, pcm in recordings.items()
        for at in range(0, pcm.size - size + 1, size)
    ]
