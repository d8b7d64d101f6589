"""One step of a language model: delays and the text's sampling in numpy, everything else in graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from antiphon.backends.base import IntArray
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.snapshots import Form, part
from antiphon.backends.stopwatch import Stopwatch
from antiphon.models.delays import DelayRings
from antiphon.models.graphs import Array
from antiphon.models.row_sampler import RowSampler
from antiphon.models.spec import LMSpec

_DELAYS, _SAMPLER = "delays.", "sampler."


class Language:
    """A Moshi-family language model over S rows; a step is read, speak, and :meth:`DelayRings.outputs`.

    Each call names the rows of the step, int32 ``[m]``; all arrays are in their order.
    """

    def __init__(self, spec: LMSpec, lm: Stage, depformer: Stage | None) -> None:
        """Take over the graphs; ``depformer`` is None for a model that only listens."""
        self._lm, self._depformer = lm, depformer
        self.spec = spec
        self.allocate(lm.slots)

    def allocate(self, rows: int) -> None:
        """Have ``rows`` fresh rows with default parameters beside those of the graphs."""
        self.delays = DelayRings(self.spec, rows)
        self.sampler = RowSampler(self.spec, rows)

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Make rows like fresh ones, those of the graphs excepted."""
        self.delays.reset(rows)
        self.sampler.reset(rows)

    def read(
        self, rows: IntArray, heard: IntArray, watch: Stopwatch, *, is_fixed: bool = False
    ) -> tuple[IntArray, dict[str, Array]]:
        """Codes int32 ``[m, codebooks]`` to the text that is sampled, int32 ``[m]``, and outputs of "lm"."""
        outputs = self._lm.run(rows, {"tokens": self.delays.inputs(rows, heard)}, is_fixed=is_fixed)
        watch.lap("lm")
        text = self.sampler.text(rows, outputs["logits"], self.delays.offsets[rows])
        watch.lap("sample")
        return text, outputs

    def speak(
        self, rows: IntArray, text: IntArray, hidden: Array, watch: Stopwatch, *, is_fixed: bool = False
    ) -> IntArray:
        """A frame's audio tokens int32 ``[m, dep_q]``, all of them by one graph."""
        if self._depformer is None:
            return np.empty((rows.size, 0), dtype=np.int32)
        noise = np.empty((rows.size, self.spec.dep_q, self.spec.card), np.float32)
        inverse, topk = self.sampler.voice_race(rows, self.delays.offsets[rows], noise)
        inputs: dict[str, Array] = {
            "noise": noise,
            "inverse_temperature": inverse,
            "topk": topk,
            "hidden": hidden,
            "text": text,
        }
        watch.lap("sample")
        codes = self._depformer.run(rows, inputs, is_fixed=is_fixed)["codes"]
        watch.lap("depformer")
        return codes.astype(np.int32)

    def snapshot(self, row: int) -> dict[str, Array]:
        """Copy what a row has beside the graphs, by name, without the row axis."""
        parts = {_DELAYS + name: np.asarray(array) for name, array in self.delays.snapshot(row).items()}
        return parts | {_SAMPLER + name: np.asarray(a) for name, a in self.sampler.snapshot(row).items()}

    def forms(self) -> dict[str, Form]:
        """What a snapshot has beside the graphs."""
        return {name: (array.shape, array.dtype) for name, array in self.snapshot(0).items()}

    def restore(self, row: int, snapshot: Mapping[str, Array]) -> None:
        """Write a checked snapshot into a row."""
        self.delays.restore(row, part(snapshot, _DELAYS))
        self.sampler.restore(row, part(snapshot, _SAMPLER))

    @property
    def bytes(self) -> int:
        """Bytes of this state of all rows."""
        return self.delays.state_bytes + self.sampler.state_bytes
