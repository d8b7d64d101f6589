"""The part of a text-to-speech tick that is the same for every framework: scripts, voices, and several steps
per tick. The model's part is one function (decision 0015).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from antiphon.backends.base import (
    NO_TOKEN,
    BoolArray,
    FloatArray,
    IntArray,
    PrimeProgress,
    StepInputs,
    StepOutputs,
    TextExecutor,
    TextStep,
)
from antiphon.backends.host import OWN, RowHost, check_inputs, check_row
from antiphon.backends.snapshots import SnapshotCache, Tensors, size_of
from antiphon.errors import UnsupportedError
from antiphon.models.conditioning import SpeakerShape
from antiphon.models.prompt import Prompt
from antiphon.models.script import Script, ScriptRules
from antiphon.models.spec import ModelSpec

TEXT_STEPS: Final = 2
"""Additional steps in a tick for rows that only read text. With them the first sound comes after a third of
the ticks; speaking rows wait for at most two steps without audio. Upstream's server does the same.
"""

Advance: TypeAlias = Callable[[IntArray, IntArray, BoolArray, bool], IntArray]
"""Advances rows int32 ``[k]`` by one step, given their choices int32 ``[k, 2]``, which rows emit (bool
``[k]``), and whether all rows are silent. Returns the model's text tokens, int32 ``[k]``.
"""


@dataclass(frozen=True, slots=True)
class ScriptTick:
    """The results of a tick, in the order of its rows; see :class:`antiphon.backends.base.StepOutputs`."""

    consumed: BoolArray
    emitted: BoolArray
    words: IntArray
    finished: BoolArray


class ScriptRows:
    """The scripts of S rows."""

    def __init__(self, rules: ScriptRules, rows: int) -> None:
        """Start with fresh scripts."""
        self.rules = rules
        self._scripts = [Script(rules) for _ in range(rows)]

    def begin(self, row: int) -> None:
        """Restart the script of a row."""
        self._scripts[row] = Script(self.rules)

    def get(self, row: int) -> Script:
        """A copy of a row's script."""
        return self._scripts[row].copy()

    def put(self, row: int, script: Script) -> None:
        """Continue a row from a script, which stays unchanged."""
        self._scripts[row] = script.copy()

    def tick(self, inputs: StepInputs, advance: Advance) -> ScriptTick:
        """Advance the named rows by a tick: one step, and before it up to ``TEXT_STEPS`` steps that only read
        text.

        A row whose script waits for words does not advance.
        """
        rows: list[int] = inputs.rows.tolist()
        consumed = np.zeros(len(rows), np.bool_)
        for place, (row, offered) in enumerate(zip(rows, inputs.text, strict=True)):
            script = self._scripts[row]
            has_room = script.has_room
            if has_room:
                script.add(offered)
            consumed[place] = has_room if offered else script.can_step
        for _ in range(TEXT_STEPS):
            reading = [row for row in rows if self._scripts[row].can_step and self._scripts[row].is_silent]
            if not reading:
                break
            self._advance(reading, np.zeros(len(reading), np.bool_), advance)
        going = [row for row in rows if self._scripts[row].can_step]
        heard = {row: self._heard(row) for row in going if self._scripts[row].is_heard}
        if going:
            self._advance(going, np.array([row in heard for row in going]), advance)
        emitted = np.array([row in heard for row in rows])
        words = np.array([heard.get(row, NO_TOKEN) for row in rows], np.int32)
        finished = np.array([self._scripts[row].is_finished for row in rows])
        return ScriptTick(consumed, emitted, words, finished)

    def _heard(self, row: int) -> int:
        """The index of the entry that begins in the frame the next step completes, or NO_TOKEN."""
        script = self._scripts[row]
        index = script.take_begun(script.step - self.rules.first_sound)
        return NO_TOKEN if index is None else index

    def _advance(self, rows: list[int], emitted: BoolArray, advance: Advance) -> None:
        scripts = [self._scripts[row] for row in rows]
        choices = np.array([script.choices for script in scripts], np.int32)
        is_silent = all(script.is_silent for script in scripts)
        asked = advance(np.array(rows, np.int32), choices, emitted, is_silent)
        for script, token in zip(scripts, asked.tolist(), strict=True):
            script.advance(token)


NO_VOICE: Final = ""
"""The key of a row without a speaker."""


class VoiceCache:
    """A cache of the keys and values of voices, up to ``limit_bytes``."""

    def __init__(self, executor: TextExecutor, limit_bytes: int) -> None:
        """Start without voices."""
        self._executor, self._kept = executor, SnapshotCache[Tensors](limit_bytes, size_of)
        self._held: dict[int, str] = {}

    def give(self, row: int, prompt: Prompt | None) -> bool:
        """Give a row the voice of a prompt, or no voice if ``prompt`` is None; returns whether the voice was
        cached.
        """
        key = NO_VOICE if prompt is None else prompt.key
        kept = self._kept.get(key)
        voice = self._executor.compute_voice(prompt) if kept is None else kept
        self._kept.put(key, voice)
        if self._held.get(row) != key:  # a voice may have 164 MB: it is written only if it is missing
            self.forget(row)  # a failed write leaves neither voice there
            self._executor.write_voice(row, voice)
            self._held[row] = key
        return kept is not None

    def forget(self, row: int) -> None:
        """Mark the row's voice as unknown, after its state was written."""
        self._held.pop(row, None)


SCRIPT: Final = OWN + "script"
"""In a snapshot: the row's script, uint8 ``[bytes]``."""


class TtsBackend(RowHost[TextExecutor]):
    """A backend of a tts model, whose rows an executor computes: each row has a script and a voice in
    addition to its state.
    """

    tick_frames: ClassVar[int] = 1 + TEXT_STEPS

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
        """Set a new script and a voice for a fresh row; returns whether the voice was cached."""
        self._frames[row] = 0
        self._scripts.begin(row)
        return self._voices is not None and self._voices.give(row, prompt)

    def _begin(self, rows: Sequence[int]) -> None:
        super()._begin(rows)
        for row in rows:
            if self._voices is not None:
                self._voices.forget(row)  # a bit-for-bit reset also erases the voice
            self._start(row, None)

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Give a fresh row its voice, in one piece; see :meth:`antiphon.backends.base.Backend.prime`."""
        check_row(self._info, row)
        if self._shape is None:
            raise UnsupportedError(f"{self._spec.name} has one built-in voice and accepts no other")
        self._shape.check(prompt)
        with self._errors.over([row]):
            self.executor.reset_rows(np.array([row], np.int32))
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

        with self._errors.over(inputs.rows):
            fresh = inputs.rows[inputs.reset]
            if fresh.size:
                self.executor.reset_rows(fresh)
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
