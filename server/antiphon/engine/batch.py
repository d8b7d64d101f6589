"""The arrays of a tick: allocated once, filled row by row, read back row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from antiphon.backends.base import NO_TOKEN, FloatArray, StepInputs, StepOutputs, TextEntry
from antiphon.models.spec import ModelSpec, PipelineKind


class RowOutput(NamedTuple):
    """One row of a tick's output; ``pcm`` is a copy of its own, float32 ``[frame_samples]``."""

    consumed: bool
    emitted: bool
    pcm: FloatArray | None
    text_token: int | None
    vad: tuple[float, ...]
    finished: bool


class Batch:
    """Where sessions put what goes into the next tick, a place a row. Only the engine thread touches it."""

    def __init__(self, spec: ModelSpec, slots: int) -> None:
        """Allocate for ``slots`` rows."""
        self._takes_text = spec.kind is PipelineKind.TTS
        self._pcm: FloatArray = np.zeros((0 if self._takes_text else slots, spec.frame_samples), np.float32)
        self._text: list[tuple[TextEntry, ...]] = [()] * slots

    def pcm_row(self, row: int) -> FloatArray:
        """Where a row's frame goes: a view, float32 ``[frame_samples]``."""
        view: FloatArray = self._pcm[row]
        return view

    def put_text(self, row: int, entries: tuple[TextEntry, ...]) -> None:
        """What a tts row is offered in this tick."""
        self._text[row] = entries

    def inputs(self, rows: Sequence[int], is_fresh: Sequence[bool], *, is_fixed: bool) -> StepInputs:
        """The tick's input for ``rows``, those of which ``is_fresh`` start afresh."""
        named, reset = np.array(rows, np.int32), np.array(is_fresh, np.bool_)
        if self._takes_text:
            text = tuple(self._text[row] for row in rows)
            return StepInputs(named, reset, None, text, is_fixed=is_fixed)
        return StepInputs(named, reset, self._pcm[named], is_fixed=is_fixed)


def read_rows(outputs: StepOutputs) -> Iterator[RowOutput]:
    """The outputs of a tick's rows, in their order.

    What did not emit has no PCM and no token, whatever the arrays hold there. PCM is copied row by
    row: a view would keep the whole tick's array alive for as long as one reply waits.
    """
    consumed, emitted = outputs.consumed.tolist(), outputs.emitted.tolist()
    finished = None if outputs.finished is None else outputs.finished.tolist()
    tokens = None if outputs.text_tokens is None else outputs.text_tokens.tolist()
    pcm, vad = outputs.pcm, outputs.vad
    for row in range(len(emitted)):
        has_finished = finished is not None and finished[row]
        if not emitted[row]:
            yield RowOutput(consumed[row], False, None, None, (), has_finished)
            continue
        token = None if tokens is None or tokens[row] == NO_TOKEN else tokens[row]
        heads = () if vad is None else tuple(vad[row].tolist())
        yield RowOutput(
            consumed[row], True, None if pcm is None else pcm[row].copy(), token, heads, has_finished
        )
