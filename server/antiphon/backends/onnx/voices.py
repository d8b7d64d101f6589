"""Whose voice a row speaks with: keys and values of cross-attention, made by a graph of their own."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from antiphon.backends.onnx.graph import Graph
from antiphon.models.graphs import Array
from antiphon.models.prompt import Prompt
from antiphon.models.speaker import SpeakerShape

CACHE_BYTES: Final = 1 << 30
"""What is kept of voices."""


class Voices:
    """Keys and values of voices, computed once each; the least recently used go, beyond ``limit_bytes``.

    ``graph`` has one row: from up to five voices to the state of ``lm`` that bears its outputs' names.
    """

    def __init__(
        self, graph: Graph, lm: Graph, shape: SpeakerShape, *, limit_bytes: int = CACHE_BYTES
    ) -> None:
        """Begin with none."""
        self.shape = shape
        self._graph, self._lm, self._limit_bytes = graph, lm, limit_bytes
        self._kept: OrderedDict[str, dict[str, Array]] = OrderedDict()
        self._held: dict[int, str] = {}

    def give(self, row: int, prompt: Prompt | None) -> bool:
        """Give a row the voice of a prompt, None being nobody's; whether it was known.

        Raises:
            UnsupportedError: the prompt is no voice.
        """
        key = "" if prompt is None else prompt.key
        is_known = key in self._kept
        if not is_known:
            self._kept[key] = self._compute(prompt)
        self._kept.move_to_end(key)
        if self._held.get(row) != key:  # a voice of tts-1.6b is 164 MB
            for name, array in self._kept[key].items():
                self._lm.state.arrays[name][row] = array
            self._held[row] = key
        while len(self._kept) > 1 and self._bytes() > self._limit_bytes:
            self._kept.popitem(last=False)
        return is_known

    def forget(self, row: int) -> None:
        """The row's state was written: whose voice it has is not known."""
        self._held.pop(row, None)

    def _compute(self, prompt: Prompt | None) -> dict[str, Array]:
        inputs, speakers = self._graph.inputs, None if prompt is None else self.shape.check(prompt)
        inputs["count"][0] = 0 if speakers is None else len(speakers)
        if speakers is not None:
            inputs["speakers"][0, : len(speakers)] = speakers
        self._graph.run(1)
        return {name: array[0].copy() for name, array in self._graph.outputs.items()}

    def _bytes(self) -> int:
        return sum(array.nbytes for kept in self._kept.values() for array in kept.values())
