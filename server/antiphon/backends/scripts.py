"""A tick of text to speech as the host sees it: which rows take a step, what they are fed, what is heard.

The model's part is one function, whatever it runs on; see decision 0015.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from antiphon.backends.base import NO_TOKEN, BoolArray, IntArray, StepInputs, TextEntry
from antiphon.models.script import Script, ScriptRules

TEXT_STEPS: Final = 2
"""Steps more that rows take within a tick while they only read: the first sound comes after a third of the
ticks, and rows that speak already wait for two steps without audio at most (upstream's server does so)."""

Advance: TypeAlias = Callable[[IntArray, IntArray, BoolArray, bool], IntArray]
"""Takes rows int32 ``[k]`` one step, given their choices int32 ``[k, 2]``, which of them emit (bool ``[k]``),
and whether all are silent; returns what the model asked for, int32 ``[k]``."""


@dataclass(frozen=True, slots=True)
class ScriptTick:
    """What became of a tick, in the order of its rows; see :class:`antiphon.backends.base.StepOutputs`."""

    consumed: BoolArray
    emitted: BoolArray
    words: IntArray
    finished: BoolArray


class ScriptRows:
    """The scripts of S rows."""

    def __init__(self, rules: ScriptRules, rows: int) -> None:
        """Begin with fresh ones."""
        self.rules = rules
        self._scripts = [Script(rules) for _ in range(rows)]

    def begin(self, row: int) -> None:
        """Let a row begin anew."""
        self._scripts[row] = Script(self.rules)

    def get(self, row: int) -> Script:
        """A copy of a row's script."""
        return self._scripts[row].copy()

    def put(self, row: int, script: Script) -> None:
        """Let a row go on from a script, which stays as it is."""
        self._scripts[row] = script.copy()

    def tick(self, inputs: StepInputs, advance: Advance) -> ScriptTick:
        """Take the named rows through a tick: one step, and ``TEXT_STEPS`` more while they only read.

        A row whose script waits for words takes none.
        """
        rows: list[int] = inputs.rows.tolist()
        consumed = np.array([self._offer(row, text) for row, text in zip(rows, inputs.text, strict=True)])
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

    def _offer(self, row: int, offered: tuple[TextEntry, ...]) -> bool:
        """Give a row its words if it has room for them; whether it consumed."""
        script = self._scripts[row]
        if offered and script.has_room:
            script.add(offered)
            return True
        return not offered and script.can_step

    def _heard(self, row: int) -> int:
        """The index of the entry that begins in the frame the next step completes, or NO_TOKEN."""
        script = self._scripts[row]
        index = script.heard(script.step - self.rules.first_sound)
        return NO_TOKEN if index is None else index

    def _advance(self, rows: list[int], emitted: BoolArray, advance: Advance) -> None:
        scripts = [self._scripts[row] for row in rows]
        choices = np.array([script.choices for script in scripts], np.int32)
        is_silent = all(script.is_silent for script in scripts)
        asked = advance(np.array(rows, np.int32), choices, emitted, is_silent)
        for script, token in zip(scripts, asked.tolist(), strict=True):
            script.advance(token)
