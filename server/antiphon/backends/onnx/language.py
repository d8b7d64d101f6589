"""One step of a language model: delays and the text's sampling in numpy, everything else in graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from antiphon.backends.base import NO_TOKEN, BoolArray, FloatArray, IntArray
from antiphon.backends.onnx.graph import Graph
from antiphon.errors import UnsupportedError
from antiphon.models.delays import DelayCache
from antiphon.models.graphs import Array
from antiphon.models.row_sampler import RowSampler
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec

_DELAYS, _SAMPLER = "delays.", "sampler."

Lap = Callable[[str], None]
"""Called with the name of a stage when it is done."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a step said: text int32 ``[n]``, codes int64 ``[n, dep_q]``, pauses float32 ``[n, heads]``.

    ``is_complete`` bool ``[n]``: the row has a frame. Where it has none its codes are still valid ids.
    """

    text_tokens: IntArray
    codes: Array
    pauses: FloatArray | None
    is_complete: BoolArray


class Language:
    """A Moshi-family language model over S rows: codes heard in, text and codes spoken out."""

    def __init__(self, spec: LMSpec, lm: Graph, depformer: Graph | None, rows: int) -> None:
        """Take over the graphs; ``depformer`` is None for a model that only listens."""
        self._spec, self._lm, self._depformer = spec, lm, depformer
        self._delays = DelayCache(spec, rows)
        self._sampler = RowSampler(spec, rows)

    @property
    def steps(self) -> Array:
        """Steps of each row since its reset, int64 ``[S]``."""
        return self._delays.offsets

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters."""
        self._sampler.set_parameters(row, parameters)

    def reset(self, mask: BoolArray) -> None:
        """Make the rows of a bool mask ``[n]`` like fresh ones."""
        self._lm.state.reset(np.flatnonzero(mask).tolist())
        self._delays.reset(mask)
        self._sampler.reset(mask)

    def step(self, codes: Array, executed: BoolArray, lap: Lap) -> Spoken:
        """Hear codes int64 ``[n, codebooks]`` and say something, for the executed rows."""
        rows, lm = len(executed), self._lm
        text = self._read(codes.astype(np.int32), executed, lap)
        voice = self._speak(text, executed, lap)
        tokens, is_complete = self._delays.outputs(text, voice, executed)
        pauses = lm.outputs["pauses"][:rows].copy() if "pauses" in lm.outputs else None
        spoken = np.where(is_complete[:, None], tokens[:, 1:], 0).astype(np.int64)
        said = np.where(is_complete, tokens[:, 0], np.int32(NO_TOKEN))
        return Spoken(said, spoken, pauses, is_complete)

    def _read(self, heard: IntArray, executed: BoolArray, lap: Lap) -> IntArray:
        """Codes int32 ``[n, codebooks]`` to the text token that is sampled, int32 ``[n]``."""
        rows, lm = len(executed), self._lm
        lm.inputs["tokens"][:rows] = self._delays.inputs(heard, executed)
        lm.inputs["exec"][:rows] = executed
        lm.run(rows)
        lap("lm")
        text = self._sampler.text(lm.outputs["logits"][:rows], self._delays.offsets, executed)
        lap("sample")
        return text

    def _speak(self, text: IntArray, executed: BoolArray, lap: Lap) -> IntArray:
        """A frame's audio tokens int32 ``[n, dep_q]``, all of them by one graph."""
        rows, graph = len(executed), self._depformer
        if graph is None:
            return np.empty((rows, 0), dtype=np.int32)
        inputs = graph.inputs
        inverse, topk = self._sampler.voice_race(self._delays.offsets, executed, inputs["noise"][:rows])
        inputs["inverse_temperature"][:rows], inputs["topk"][:rows] = inverse, topk
        inputs["hidden"][:rows] = self._lm.outputs["hidden"][:rows]
        inputs["text"][:rows] = text
        lap("sample")
        graph.run(rows)
        lap("depformer")
        return graph.outputs["codes"][:rows].astype(np.int32)

    def snapshot(self, row: int) -> dict[str, Array]:
        """Copy one row's state, by name, without the row axis."""
        return {**self._lm.state.snapshot(row), **self._little(row)}

    def _little(self, row: int) -> dict[str, Array]:
        """The part of a row's state that is no graph's."""
        parts = {_DELAYS + name: np.asarray(array) for name, array in self._delays.snapshot(row).items()}
        parts |= {_SAMPLER + name: np.asarray(array) for name, array in self._sampler.snapshot(row).items()}
        return parts

    def check(self, snapshot: Mapping[str, Array]) -> None:
        """Raise UnsupportedError unless a snapshot is of a model of this shape."""
        self._lm.state.check(snapshot)
        for name, array in self._little(0).items():
            if name not in snapshot or snapshot[name].shape != array.shape:
                raise UnsupportedError(f"the snapshot's {name} does not fit {list(array.shape)}")

    def restore(self, row: int, snapshot: Mapping[str, Array]) -> None:
        """Write a checked snapshot into a row."""
        self._lm.state.restore(row, snapshot)
        self._delays.restore(row, _part(snapshot, _DELAYS))
        self._sampler.restore(row, _part(snapshot, _SAMPLER))

    def move(self, source: int, target: int) -> None:
        """Copy the state and parameters of one row over another."""
        self._lm.state.move(source, target)
        self._delays.move(source, target)
        self._sampler.move(source, target)

    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        return self._lm.bytes + self._delays.state_bytes + self._sampler.state_bytes


def _part(snapshot: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in snapshot.items() if name.startswith(prefix)}
