"""One step of a tts model: what it hears of its text is written, and its codes wait for their delay."""

from __future__ import annotations

import numpy as np

from antiphon.backends.base import BoolArray, IntArray
from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.language import Language, Lap
from antiphon.models.delays import ZERO
from antiphon.models.graphs import Array
from antiphon.models.script import NEW_WORD
from antiphon.models.spec import LMSpec


class ScriptedLanguage(Language):
    """A language model whose text is told; its audio tokens begin ``audio_delay`` steps after text.

    ``codes`` int64 ``[S, dep_q]`` are those of the frames that were completed last.
    """

    def __init__(self, spec: LMSpec, lm: Graph, depformer: Graph, rows: int, *, audio_delay: int) -> None:
        """Take over the graphs."""
        super().__init__(spec, lm, depformer, rows)
        self._first = np.array(spec.delays[1 : 1 + spec.dep_q]) + audio_delay
        self._nothing_heard = np.empty((rows, 0), np.int32)
        self.codes: Array = np.zeros((rows, spec.dep_q), np.int64)

    def tell(self, choices: IntArray, executed: BoolArray, lap: Lap, *, is_silent: bool) -> IntArray:
        """Take a step and return what the model asked for, int32 ``[n]``.

        ``choices`` int32 ``[n, 2]``: what it is fed if that is a word, and if it is not. ``is_silent``:
        every executed row is within its audio delay, so there is no audio token to be found.
        """
        rows = len(executed)
        asked = self._read(self._nothing_heard[:rows], executed, lap)
        text = np.where(asked == NEW_WORD, choices[:, 0], choices[:, 1])
        voice: IntArray = np.full((rows, self._spec.dep_q), ZERO, np.int32)
        if not is_silent:
            is_audible = self._delays.offsets[:rows, None] >= self._first
            voice = np.where(is_audible, self._speak(text, executed, lap), voice)
        tokens, _ = self._delays.outputs(text, voice, executed)
        self.codes[:rows] = tokens[:, 1:].clip(min=0)
        return asked
