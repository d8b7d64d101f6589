"""The onnx backend for text to speech: a script and a voice beside each row's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from antiphon.backends.base import BoolArray, IntArray, PrimeProgress, RowSnapshot, StepInputs, StepOutputs
from antiphon.backends.checks import check_row
from antiphon.backends.onnx.backend import Build, OnnxBackend, Stopwatch
from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.language import Language
from antiphon.backends.onnx.scripted import ScriptedLanguage
from antiphon.backends.onnx.voices import Voices
from antiphon.backends.scripts import ScriptRows
from antiphon.errors import UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.script import Script, ScriptRules
from antiphon.models.speaker import SpeakerShape
from antiphon.models.spec import LMSpec, ModelSpec

_SCRIPT: Final = "script"


class SpeakingBackend(OnnxBackend):
    """A tts model over ``slots`` rows; see :class:`antiphon.backends.base.Backend` and ``ScriptRows``."""

    def __init__(
        self,
        spec: ModelSpec,
        graphs: Mapping[str, Graph],
        *,
        slots: int,
        build: Build,
        voice: Graph | None = None,
    ) -> None:
        """Take over loaded graphs: "lm", "depformer" and "decode" of ``slots`` rows, ``voice`` of one."""
        self._voice = voice
        super().__init__(spec, graphs, slots=slots, build=build)

    def _take_rows(self, spec: ModelSpec, slots: int) -> None:
        super()._take_rows(spec, slots)
        self._scripts = ScriptRows(ScriptRules.of(spec), slots)
        self._choices = np.zeros((slots, 2), np.int32)
        shape, self._voices = SpeakerShape.of(spec), None
        if shape is not None and self._voice is not None:
            self._voices = Voices(self._voice, self._graphs["lm"], shape)
            self._info = replace(self._info, can_prime=True)
        for row in range(slots):
            self._begin(row, None)

    def _make_language(self, spec: ModelSpec, lm: LMSpec, slots: int) -> Language:
        graphs, rules = self._graphs, ScriptRules.of(spec)
        return ScriptedLanguage(lm, graphs["lm"], graphs["depformer"], slots, audio_delay=rules.audio_delay)

    @property
    def _scripted(self) -> ScriptedLanguage:
        assert isinstance(self._language, ScriptedLanguage)
        return self._language

    def _begin(self, row: int, prompt: Prompt | None) -> bool:
        """Give a row a new script and a voice, None being nobody's; whether the voice was known."""
        self._scripts.begin(row)
        return self._voices is not None and self._voices.give(row, prompt)

    def _reset(self, mask: BoolArray) -> None:
        super()._reset(mask)
        for row in np.flatnonzero(mask).tolist():
            self._begin(row, None)

    def _try(self, everyone: BoolArray) -> None:
        watch = Stopwatch()
        for is_silent in (True, False):
            self._scripted.tell(self._choices[: len(everyone)], everyone, watch.lap, is_silent=is_silent)
        self._speak(self._scripted.codes[: len(everyone)], everyone)

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Give a fresh row its voice, in one piece; see :meth:`antiphon.backends.base.Backend.prime`."""
        check_row(self._info, row)
        if self._voices is None:
            raise UnsupportedError(f"{self._info.spec.name} has a voice of its own and takes no other")
        self._voices.shape.check(prompt)
        touched = np.arange(self._info.slots) == row
        try:
            super()._reset(touched)
            is_known = self._begin(row, prompt)
        except Exception as error:  # onnxruntime's exceptions share no base but this one
            raise self._judge(error, touched) from error
        return PrimeProgress(1, 1, is_copied=is_known)

    def snapshot(self, row: int) -> RowSnapshot:
        """Copy a row's state, script and voice."""
        found = super().snapshot(row)
        return replace(found, tensors={**found.tensors, _SCRIPT: self._scripts.get(row)})

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Put a row's state back.

        Raises:
            UnsupportedError: a snapshot of another backend or model; the row is then as it was.
        """
        super().restore(row, snapshot)
        self._put(row, snapshot.tensors[_SCRIPT])

    def move(self, source: int, target: int) -> None:
        """Copy the state, script, voice and parameters of one row over another."""
        super().move(source, target)
        self._put(target, self._scripts.get(source))

    def _put(self, row: int, script: Script) -> None:
        self._scripts.put(row, script)
        if self._voices is not None:
            self._voices.forget(row)

    def close(self) -> None:
        """Let go of the sessions and their state."""
        super().close()
        del self._voices, self._voice

    def _step(self, inputs: StepInputs) -> StepOutputs:
        rows, watch = inputs.rows, Stopwatch()

        def advance(going: BoolArray, emitted: BoolArray) -> IntArray:
            self._scripts.choices(going, self._choices)
            is_silent = self._scripts.is_silent(going)
            asked = self._scripted.tell(self._choices[:rows], going, watch.lap, is_silent=is_silent)
            if emitted.any():
                self._speak(self._scripted.codes[:rows], emitted)
                watch.lap("decode")
            return asked

        told = self._scripts.tick(inputs, advance)
        pcm = self._graphs["decode"].outputs["pcm"][:rows].copy()
        return StepOutputs(
            told.consumed, told.emitted, pcm, told.words, finished=told.finished, stage_ms=watch.stage_ms
        )
