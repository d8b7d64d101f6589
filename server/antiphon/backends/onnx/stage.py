"""A stage of a model: one graph, run over whichever rows are named."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import geometric_mean, median
from typing import Final

import numpy as np
import onnxruntime
from numpy.typing import ArrayLike

from antiphon.backends.base import IntArray
from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.neighbour import neighbour
from antiphon.backends.onnx.rows import RowState
from antiphon.backends.onnx.sessions import Apart, Opener
from antiphon.backends.onnx.windows import RunCost, cut, split
from antiphon.models.graphs import Array, GraphFormat

PACKED_STATE_BYTES: Final = 200_000
"""The most state of a row that is copied for a run: 0.01 ms in and out, where one more run of the smallest
graph costs 0.3 ms (docs/adr/0021-ready-rows.md)."""
TIMED_RUNS: Final = 5
SPIN_GAIN: Final = 0.95
"""Of the time with threads that sleep: threads spin where they take less than that. What they spin is taken
from whatever else the machine does, so that a time within the noise of a measurement is no reason."""

EXEC: Final = "exec"
"""The input that says which rows advance, of graphs that have state."""


class Stage:
    """A graph over S rows. A run names its rows, in any order.

    Where a row has little state or none, the named rows are packed: their state is copied together, run and
    copied back. Where it has more, state stays where it lies and the graph runs over windows of neighbouring
    rows; idle rows among them do not advance. ``cost`` decides which gaps a window bridges. From
    ``apart_from`` rows on the windows are cut into as many parts as there are threads, which run at the same
    time. ``is_spinning``: threads keep their cores while they wait within a run. Both are measured where an
    ``opener`` is given.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        form: GraphFormat,
        rows: int,
        opener: Opener | None = None,
    ) -> None:
        """Allocate ``rows`` fresh rows for a graph that was checked."""
        self._session, self._form, self._opener = session, form, opener
        self._apart: Apart | None = None
        self.apart_from: int | None = None
        self.is_spinning = opener is not None and bool(opener.spin)
        row_bytes = sum(form.input(entry.name).row_bytes for entry in form.state)
        self.is_packed = row_bytes <= PACKED_STATE_BYTES
        self.cost = RunCost(0.0, 1.0)
        self.allocate(rows)

    def allocate(self, rows: int) -> None:
        """Have ``rows`` fresh rows in place of those there were, which may still be in memory meanwhile."""
        self.slots = rows
        self.graph = Graph(self._session, self._form, rows, self._apart)
        self.state = RowState(self._form, rows) if self.is_packed else self.graph.state

    def windows(self, rows: IntArray, *, is_fixed: bool = False) -> list[range]:
        """Which rows of the graph's buffers are run for ``rows`` int32 ``[m]``, in ascending windows."""
        if is_fixed:
            return [range(self.slots)]
        return [range(rows.size)] if self.is_packed else split(sorted(rows.tolist()), self.cost)

    def run(
        self, rows: IntArray, inputs: Mapping[str, ArrayLike], *, is_fixed: bool = False
    ) -> dict[str, Array]:
        """Advance ``rows`` int32 ``[m]`` and return copies of the outputs, ``[m, ...]``.

        ``inputs`` are ``[m, ...]``, or one for all rows. ``is_fixed``: one run over all S rows, each in its
        own place.
        """
        graph, windows = self.graph, self.windows(rows, is_fixed=is_fixed)
        is_gathered = self.is_packed and not is_fixed
        places = np.arange(rows.size, dtype=np.int32) if is_gathered else rows
        if sum(map(len, windows)) > rows.size:
            for array in graph.inputs.values():
                for window in windows:
                    array[window.start : window.stop] = 0  # idle rows hear nothing, and do not advance
        for name, array in graph.inputs.items():
            array[places] = inputs[name] if name != EXEC else True
        if self.is_packed:
            lain = np.arange(self.slots, dtype=np.int32) if is_fixed else rows
            graph.state.gather(self.state, lain)
        if is_fixed or not self._run_apart(windows):
            for window in windows:
                graph.run(window)
        if self.is_packed:
            graph.state.scatter(self.state, lain)
        return {name: array[places] for name, array in graph.outputs.items()}

    def _run_apart(self, windows: Sequence[range]) -> bool:
        """Run windows in parts at the same time, if they have rows enough; whether they have."""
        if self._apart is None or self.apart_from is None or sum(map(len, windows)) < self.apart_from:
            return False
        self.graph.run_apart(cut(windows, self._apart.threads))
        return True

    def warm_up(self, counts: Sequence[int]) -> None:
        """Run over 1, 2, ... rows, after which no row is fresh, and measure what runs cost.

        Each time is that of rows that were not just run: their rings come from memory, as in a call. Beside
        sockets, where threads leave no core to them, the best run is one that met none of their work: what
        a run costs is told by that, how it is run by the medians.
        """
        for array in self.graph.inputs.values():
            array[:] = 1  # a token, a truth, a top-1: an input that every graph takes
        with neighbour(self.threads):
            times_ms = self._time_waiting(counts)
            self.open_apart()
            self.apart_from = self._find_apart_from(times_ms)
        self.cost = RunCost.fit({count: min(found) for count, found in times_ms.items()})
        if self.apart_from is None:
            self._use(self._session)

    def open_apart(self) -> None:
        """Open the session for parts, unless it is open or there are none."""
        if self._opener is not None and self._apart is None:
            self._use(self._session, self._opener.open_apart())

    def _time_waiting(self, counts: Sequence[int]) -> dict[int, list[float]]:
        """Milliseconds by number of rows, of threads that sleep or that spin: those that were faster stay."""
        if self._opener is None or self._opener.spin is not None:
            return self._time_counts(counts)
        if self.is_spinning:  # since an earlier warm-up
            self._reopen(spin=False)
        sleeping_ms = self._time_counts(counts)
        self._reopen(spin=True)
        spinning_ms = self._time_counts(counts)
        ratios = [median(spinning_ms[count]) / median(sleeping_ms[count]) for count in counts]
        if geometric_mean(ratios) < SPIN_GAIN:
            return spinning_ms
        self._reopen(spin=False)
        return sleeping_ms

    def _reopen(self, *, spin: bool) -> None:
        assert self._opener is not None
        self._use(None)  # the weights are in memory once
        self._use(self._opener.open(spin=spin))
        self.is_spinning = spin

    def _use(self, session: onnxruntime.InferenceSession | None, apart: Apart | None = None) -> None:
        self._session, self._apart = session, apart
        self.graph.use(session, apart)

    def _time_counts(self, counts: Sequence[int]) -> dict[int, list[float]]:
        self._time_ms(range(self.slots))
        return {count: list(map(self._time_ms, self._spaced(count))) for count in counts}

    def _find_apart_from(self, times_ms: Mapping[int, Sequence[float]]) -> int | None:
        """The number of rows from which on parts at the same time took less than one run of all threads."""
        found = None
        if self._apart is not None:
            for count in sorted(times_ms, reverse=True):
                parts_ms = median(map(self._time_apart_ms, self._spaced(count)))
                if count < self._apart.threads or parts_ms >= median(times_ms[count]):
                    break
                found = count
        return found

    def _spaced(self, count: int) -> list[range]:
        """Windows of so many rows, as far from each other as there is room."""
        starts = np.linspace(0, self.slots - count, TIMED_RUNS).astype(int).tolist()
        return [range(start, start + count) for start in starts]

    def _time_ms(self, window: range) -> float:
        begin_s = time.perf_counter()
        self.graph.run(window)
        return 1000.0 * (time.perf_counter() - begin_s)

    def _time_apart_ms(self, window: range) -> float:
        assert self._apart is not None
        begin_s = time.perf_counter()
        self.graph.run_apart(cut([window], self._apart.threads))
        return 1000.0 * (time.perf_counter() - begin_s)

    def close(self) -> None:
        """Let go of the other threads."""
        if self._opener is not None and self._opener.pool is not None:
            self._opener.pool.shutdown()

    @property
    def threads(self) -> int:
        """How many threads a step has."""
        return 1 if self._opener is None else self._opener.threads

    @property
    def spare_bytes(self) -> int:
        """Bytes of a second copy of the weights that are not in memory, since no parts run."""
        opener = self._opener
        return 0 if opener is None or opener.pool is None or self._apart is not None else opener.file_bytes

    @property
    def bytes(self) -> int:
        """Bytes of state of all rows, with room for the rows of a run."""
        return self.graph.bytes + (self.state.bytes if self.is_packed else 0)
