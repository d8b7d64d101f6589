"""A tick of text to speech as the host sees it: which rows take a step, what they are fed, what is heard.

The model's part is one function, whatever it runs on; see decision 0015.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import NO_TOKEN, BoolArray, IntArray, StepInputs
from antiphon.models.script import Script, ScriptRules

TEXT_STEPS: Final = 2
"""Steps more that rows take within a tick while they only read: the first sound comes after a third of the
ticks, and those who speak already wait for two steps without audio at most (upstream's server does so)."""

Advance: TypeAlias = Callable[[BoolArray, BoolArray], IntArray]
"""Takes rows (bool ``[n]``) one step, those of the second mask to PCM; says what the model asked, ``[n]``."""


@dataclass(frozen=True, slots=True)
class Told:
    """What became of a tick, as :class:`antiphon.backends.base.StepOutputs` wants it."""

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

    def tick(self, inputs: StepInputs, advance: Advance) -> Told:
        """Take the executed rows through a tick: one step, and ``TEXT_STEPS`` more while they only read.

        A row whose script waits for words takes none.
        """
        consumed, rows = self._offer(inputs), inputs.rows
        nobody = np.zeros(rows, np.bool_)
        for _ in range(TEXT_STEPS):
            reading = self._able(inputs.exec, is_silent=True)
            if not reading.any():
                break
            self._advance(reading, nobody, advance)
        going = self._able(inputs.exec)
        emitted, words = self._heard(going)
        if going.any():
            self._advance(going, emitted, advance)
        finished = np.array([script.is_finished for script in self._scripts[:rows]]) & inputs.exec
        return Told(consumed, emitted, words, finished)

    def choices(self, going: BoolArray, out: NDArray[np.signedinteger[Any]]) -> None:
        """Write both next tokens of every row that goes on into ``out [S, 2]``: see ``Script.choices``."""
        for row in np.flatnonzero(going).tolist():
            out[row] = self._scripts[row].choices

    def is_silent(self, going: BoolArray) -> bool:
        """Whether the next step of these rows makes no audio token for any of them."""
        return all(self._scripts[row].is_silent for row in np.flatnonzero(going).tolist())

    def _offer(self, inputs: StepInputs) -> BoolArray:
        """Give every executed row its words if it has room for them; which rows consumed."""
        consumed = np.zeros(inputs.rows, np.bool_)
        for row in np.flatnonzero(inputs.exec).tolist():
            script, offered = self._scripts[row], inputs.text[row]
            if offered and script.has_room:
                script.add(offered)
                consumed[row] = True
            consumed[row] |= not offered and script.can_step
        return consumed

    def _able(self, executed: BoolArray, *, is_silent: bool = False) -> BoolArray:
        """Which of the executed rows can take a step; with ``is_silent``, one without audio."""
        chosen = executed.copy()
        for row in np.flatnonzero(executed).tolist():
            script = self._scripts[row]
            chosen[row] = script.can_step and (script.is_silent or not is_silent)
        return chosen

    def _heard(self, going: BoolArray) -> tuple[BoolArray, IntArray]:
        """Which rows complete a frame in the next step, and the index of the entry that begins in it."""
        emitted, words = np.zeros(len(going), np.bool_), np.full(len(going), NO_TOKEN, np.int32)
        for row in np.flatnonzero(going).tolist():
            script = self._scripts[row]
            if script.is_heard:
                emitted[row] = True
                index = script.heard(script.step - self.rules.first_sound)
                words[row] = NO_TOKEN if index is None else index
        return emitted, words

    def _advance(self, going: BoolArray, emitted: BoolArray, advance: Advance) -> None:
        asked = advance(going, emitted).tolist()
        for row in np.flatnonzero(going).tolist():
            self._scripts[row].advance(asked[row])
