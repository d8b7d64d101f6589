"""A server with the built-in talker, and a question that it answers correctly, for stock clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any
from unittest.mock import patch

from antiphon.audio import clock
from antiphon.audio.files import read_audio
from antiphon.audio.pcm import s16le_from_float
from antiphon.backends.onnx.loading import make
from antiphon.models.catalog import load_checkpoint
from tests.serve.harness import Server, serving

ANSWER = " my name is robin"
LOUD = 1000
ROOM = {"input_frames": 400, "output_frames": 400}
"""However busy the machine, no sound is lost: an answer comes late, and is the same."""
OVERDUE_S = 30.0
"""Nor is it replaced by silence because its sender had to wait for the machine."""


def question_file(folder: Path) -> Path:
    """A question that the model answers rightly when it takes the likeliest token, as PCM of 24 kHz."""
    clip = Path(str(resources.files("antiphon_client") / "clips" / "question-name.ogg"))
    path = folder / "name.pcm"
    path.write_bytes(s16le_from_float(read_audio(clip)))
    return path


@asynccontextmanager
async def tiny(*also: str, **settings: Any) -> AsyncIterator[Server]:
    """The built-in talker, which says the likeliest thing, and ``also`` others."""
    checkpoint = load_checkpoint("tiny")
    backend = make(checkpoint, slots=2, threads=1)
    beside = [(other, make(other, slots=2, threads=1)) for other in map(load_checkpoint, also)]
    async with serving(model=(checkpoint, backend), beside=beside, engine=ROOM, **settings) as server:
        model = server.services.models.first
        greedy = replace(model.defaults, text_temperature=0.0, audio_temperature=0.0)
        object.__setattr__(model, "defaults", greedy)
        with patch.object(clock, "OVERDUE_S", OVERDUE_S):
            yield server
