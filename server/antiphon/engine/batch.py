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
    """Inputs for rows ``0 .. slots-1``. Only the engine thread touches it.

    Rows that take no part in a tick hold whatever they held before: the execution mask keeps it from
    having any effect, and not clearing it keeps a tick's cost proportional to the rows that do.
    """

    def __init__(self, spec: ModelSpec, slots: int) -> None:
        """Allocate for ``slots`` rows."""
        self._takes_text = spec.kind is PipelineKind.TTS
        self._pcm: FloatArray = np.zeros((0 if self._takes_text else slots, spec.frame_samples), np.float32)
        self._text: list[tuple[TextEntry, ...]] = [()] * slots
        self._exec = np.zeros(slots, np.bool_)
        self._reset = np.zeros(slots, np.bool_)

    def pcm_row(self, row: int) -> FloatArray:
        """Where a row's frame goes: a view, float32 ``[frame_samples]``."""
        view: FloatArray = self._pcm[row]
        return view

    def put_text(self, row: int, entries: tuple[TextEntry, ...]) -> None:
        """What a tts row is offered in this tick."""
        self._text[row] = entries

    def inputs(self, rows: Sequence[int], fresh_rows: Sequence[int], bucket: int) -> StepInputs:
        """The tick's input over rows ``0 .. bucket-1``: ``rows`` advance, ``fresh_rows`` start afresh."""
        executed, reset = self._exec[:bucket], self._reset[:bucket]
        executed[:] = False
        executed[rows] = True
        reset[:] = False
        reset[fresh_rows] = True
        if not self._takes_text:
            return StepInputs(executed, reset, self._pcm[:bucket])
        offered = set(rows)
        text = tuple(self._text[row] if row in offered else () for row in range(bucket))
        return StepInputs(executed, reset, None, text)


def read_rows(outputs: StepOutputs, rows: Sequence[int]) -> Iterator[RowOutput]:
    """The outputs of ``rows``, in their order.

    What did not emit has no PCM and no token, whatever the arrays hold there. PCM is copied row by
    row: a view would keep the whole tick's array alive for as long as one reply waits.
    """
    consumed, emitted = outputs.consumed.tolist(), outputs.emitted.tolist()
    finished = None if outputs.finished is None else outputs.finished.tolist()
    tokens = None if outputs.text_tokens is None else outputs.text_tokens.tolist()
    pcm, vad = outputs.pcm, outputs.vad
    for row in rows:
        has_finished = finished is not None and finished[row]
        if not emitted[row]:
            yield RowOutput(consumed[row], False, None, None, (), has_finished)
            continue
        token = None if tokens is None or tokens[row] == NO_TOKEN else tokens[row]
        heads = () if vad is None else tuple(vad[row].tolist())
        yield RowOutput(
            consumed[row], True, None if pcm is None else pcm[row].copy(), token, heads, has_finished
        )
