"""The part of a text-to-speech tick that is the same for every framework: scripts, voices, and several steps
a tick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from antiphon.backends.base import (
    BoolArray,
    FloatArray,
    IntArray,
    PrimeProgress,
    StepInputs,
    StepOutputs,
)
from antiphon.backends.checks import check_inputs, check_row
from antiphon.backends.executor import TextExecutor, TextStep
from antiphon.backends.host import OWN, RowHost
from antiphon.backends.scripts import ScriptRows
from antiphon.backends.voices import VoiceCache
from antiphon.errors import UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.script import Script, ScriptRules
from antiphon.models.speaker import SpeakerShape
from antiphon.models.spec import ModelSpec

SCRIPT: Final = OWN + "script"
"""In a snapshot: the row's script, uint8 ``[bytes]``."""


class TtsBackend(RowHost[TextExecutor]):
    """A tts model over rows of an executor: a script and a voice beside each row's state."""

    def __init__(self, spec: ModelSpec, executor: TextExecutor, *, slots: int) -> None:
        """Give an executor ``slots`` fresh rows."""
        self._rules = ScriptRules.of(spec)
        self._shape = SpeakerShape.of(spec)
        super().__init__(spec, executor, slots=slots, can_prime=self._shape is not None)

    def _take_rows(self, slots: int) -> None:
        super()._take_rows(slots)
        caches = self._info.memory["caches"]
        self._voices = None if self._shape is None else VoiceCache(self.executor, caches)
        self._scripts = ScriptRows(self._rules, slots)
        for row in range(slots):
            self._start(row, None)

    def _start(self, row: int, prompt: Prompt | None) -> bool:
        """A new script and a voice for a fresh row; whether the voice was known."""
        self._frames[row] = 0
        self._scripts.begin(row)
        return self._voices is not None and self._voices.give(row, prompt)

    def _begin(self, rows: Sequence[int]) -> None:
        super()._begin(rows)
        for row in rows:
            if self._voices is not None:
                self._voices.forget(row)  # a reset bit for bit erases the voice too
            self._start(row, None)

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Give a fresh row its voice, in one piece; see :meth:`antiphon.backends.base.Backend.prime`."""
        check_row(self._info, row)
        if self._shape is None:
            raise UnsupportedError(f"{self._spec.name} has one built-in voice and accepts no other")
        self._shape.check(prompt)
        with self._judging([row]):
            self.executor.renew(np.array([row], np.int32))
            is_known = self._start(row, prompt)
        return PrimeProgress(1, 1, is_copied=is_known)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Advance the named rows by one tick; see :meth:`antiphon.backends.base.Backend.step`."""
        check_inputs(self._info, inputs)
        pcm: FloatArray = np.zeros((inputs.count, self._spec.frame_samples), np.float32)
        stage_ms: dict[str, float] = {}

        def advance(rows: IntArray, choices: IntArray, emitted: BoolArray, is_silent: bool) -> IntArray:
            frames = self._frames[rows]
            step = TextStep(rows, frames, choices, emitted, is_silent, inputs.is_fixed)
            result = self.executor.advance(step)
            if result.pcm is not None:
                pcm[np.isin(inputs.rows, rows[emitted])] = result.pcm
            for stage, milliseconds in result.stage_ms.items():
                stage_ms[stage] = stage_ms.get(stage, 0.0) + milliseconds
            self._frames[rows] = frames + 1
            return result.asked

        with self._judging(inputs.rows):
            fresh = inputs.rows[inputs.reset]
            if fresh.size:
                self.executor.renew(fresh)
            for row in fresh.tolist():
                self._start(row, None)
            tick = self._scripts.tick(inputs, advance)
        return StepOutputs(
            tick.consumed, tick.emitted, pcm, tick.words, finished=tick.finished, stage_ms=stage_ms
        )

    def _remembered(self, row: int) -> dict[str, Any]:
        script = np.frombuffer(self._scripts.get(row).to_bytes(), np.uint8)
        return {**super()._remembered(row), SCRIPT: script}

    def _script_of(self, remembered: Mapping[str, Any]) -> Script:
        return Script.from_bytes(self._rules, np.asarray(remembered[SCRIPT]).tobytes())

    def _check(self, remembered: Mapping[str, Any]) -> None:
        super()._check(remembered)
        self._script_of(remembered)

    def _recall(self, row: int, remembered: Mapping[str, Any]) -> None:
        super()._recall(row, remembered)
        if self._voices is not None:
            self._voices.forget(row)
        self._scripts.put(row, self._script_of(remembered))
