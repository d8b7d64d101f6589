"""A small Pocket-TTS model made by the package, and a driver for its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from antiphon.backends.base import NO_TOKEN, Backend, FloatArray, StepInputs, TextEntry
from antiphon.backends.registry import make_backend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon.models.script import TextReader

SAMPLED = SamplingParameters(audio_temperature=0.5, audio_seed=7)
GREEDY = SamplingParameters(audio_temperature=0.0)

LONG = (
    "Good morning to you. How are you today, my friend? It rains in the north, and the wind is cold. "
    "Seven, eight, nine and ten are numbers that everybody knows by heart and says with joy. The end"
)


def small_backend(folder: Path, slots: int = 3, **options: object) -> Backend:
    checkpoint = load_checkpoint(str(folder))
    return make_backend("pocket", checkpoint, slots=slots, options={"threads": 1, **options})


def entries_of(folder: Path, text: str) -> list[TextEntry]:
    """What the server makes of a text."""
    checkpoint = load_checkpoint(str(folder))
    tokenizer = checkpoint.text_tokenizer()
    assert tokenizer is not None
    return [*TextReader(checkpoint.spec, tokenizer.encode).read(text), TextEntry((), is_last=True)]


@dataclass
class Talk:
    """One row's session: what it has not been offered yet, and what it has said."""

    entries: list[TextEntry]
    parameters: SamplingParameters = SAMPLED
    at_once: int = 8
    pcm: list[FloatArray] = field(default_factory=list)
    told: list[tuple[int, int]] = field(default_factory=list)
    is_fresh: bool = True
    is_done: bool = False

    @property
    def audio(self) -> FloatArray:
        return np.concatenate([np.zeros(0, np.float32), *self.pcm])


def tick(backend: Backend, talks: dict[int, Talk]) -> None:
    """One step of all rows that are not done."""
    going = {row: talk for row, talk in talks.items() if not talk.is_done}
    if not going:
        return
    for row, talk in going.items():
        if talk.is_fresh:
            backend.set_parameters(row, talk.parameters)
    rows, reset = np.array(list(going), np.int32), np.array([talk.is_fresh for talk in going.values()])
    text = tuple(tuple(talk.entries[: talk.at_once]) for talk in going.values())
    outputs = backend.step(StepInputs(rows, reset, None, text))
    assert outputs.pcm is not None
    assert outputs.text_tokens is not None
    assert outputs.finished is not None
    for place, talk in enumerate(going.values()):
        talk.is_fresh = False
        if outputs.consumed[place]:
            talk.entries = talk.entries[talk.at_once :]
        if outputs.emitted[place]:
            if outputs.text_tokens[place] != NO_TOKEN:
                talk.told.append((len(talk.pcm), int(outputs.text_tokens[place])))
            talk.pcm.append(outputs.pcm[place].copy())
        talk.is_done = bool(outputs.finished[place])


def speak(
    backend: Backend,
    entries: Sequence[TextEntry],
    *,
    row: int = 0,
    parameters: SamplingParameters = SAMPLED,
    at_once: int = 8,
    is_primed: bool = False,
) -> Talk:
    """A whole text, alone on one row."""
    talk = Talk(list(entries), parameters, at_once, is_fresh=not is_primed)
    if is_primed:
        backend.set_parameters(row, parameters)
    for _ in range(2000):
        if talk.is_done:
            return talk
        tick(backend, {row: talk})
    raise AssertionError("it never ends")
