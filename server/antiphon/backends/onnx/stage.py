"""A stage of a model: one graph, run over the named rows, in windows chosen by the cost of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from antiphon.backends.base import IntArray
from antiphon.backends.onnx.autotune import (
    Choice,
    Prepare,
    RunCost,
    ThreadMode,
    cut,
    few,
    load,
    split,
    time_modes,
)
from antiphon.backends.onnx.graph import Graph, RowState
from antiphon.backends.onnx.sessions import Opener, SplitSession, onnxruntime
from antiphon.models.manifest import Array, GraphFormat

PACKED_STATE_BYTES: Final = 200_000
"""Maximum state of a row that is copied for a run. Copying it in and out takes 0.01 ms; one more run of the
smallest graph takes 0.3 ms (docs/adr/0021-ready-rows.md).
"""
TRIED_BYTES: Final = 2_000_000_000
"""Maximum size of a graph that is opened twice at the start, to measure whether its threads should spin.
Threads of a larger graph sleep, because memory may hold its weights only once.
"""

EXEC: Final = "exec"
"""The input of graphs with state that selects the rows that advance."""


class Stage:
    """A graph over S rows. A run names its rows, in any order.

    If a row has little state or none, the named rows are packed: their state is copied together, run and
    copied back. If a row has more state, the state remains in place and the graph runs over windows of
    neighbouring rows; idle rows in a window do not advance. ``cost`` decides which gaps a window bridges.
    With at least ``split_from`` rows the windows are cut into parts, which run at the same time, one per
    thread. If the graph is short, there is at most one part per window or per ``split_from / 2`` rows,
    whichever are more. ``is_spinning``: threads keep their cores while they wait within a run. The stage
    measures ``cost``, unless it is packed and has neither a choice nor parts. For a short graph
    ``split_from`` follows from the cost; for others an ``opener`` lets the stage choose it, and whether to
    spin, once.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        form: GraphFormat,
        rows: int,
        opener: Opener | None = None,
        *,
        packs: bool = True,
    ) -> None:
        """Allocate ``rows`` fresh rows for a graph that was checked; with ``packs`` little state is
        packed.
        """
        self._session, self._form, self._opener = session, form, opener
        self._split: SplitSession | None = None
        self.split_from: int | None = None
        self._is_chosen = False
        self._is_short = opener is not None and opener.is_short
        self.is_spinning = opener is not None and bool(opener.spin) and not self._is_short
        row_bytes = sum(form.input(entry.name).row_bytes for entry in form.state)
        self.is_packed = packs and row_bytes <= PACKED_STATE_BYTES
        self.cost = RunCost(0.0, 1.0)
        self.allocate(rows)

    def allocate(self, rows: int) -> None:
        """Allocate ``rows`` fresh rows in place of the former ones, which may remain in memory for a time."""
        self.slots = rows
        self.graph = Graph(self._session, self._form, rows, self._split)
        self.state = RowState(self._form, rows) if self.is_packed else self.graph.state

    def windows(self, rows: IntArray, *, is_fixed: bool = False) -> list[range]:
        """The ascending windows of buffer rows that are run for ``rows`` int32 ``[m]``."""
        if is_fixed:
            return [range(self.slots)]
        return [range(rows.size)] if self.is_packed else split(sorted(rows.tolist()), self.cost)

    def run(
        self, rows: IntArray, inputs: Mapping[str, ArrayLike], *, is_fixed: bool = False
    ) -> dict[str, Array]:
        """Advance ``rows`` int32 ``[m]`` and return copies of the outputs, ``[m, ...]``.

        Each of ``inputs`` is ``[m, ...]``, or one value for all rows. ``is_fixed``: one run over all S rows,
        each in its own place.
        """
        graph, windows = self.graph, self.windows(rows, is_fixed=is_fixed)
        is_gathered = self.is_packed and not is_fixed
        places = np.arange(rows.size, dtype=np.int32) if is_gathered else rows
        if sum(map(len, windows)) > rows.size:
            for array in graph.inputs.values():
                for window in windows:
                    array[window.start : window.stop] = 0  # idle rows have no input, and do not advance
        for name, array in graph.inputs.items():
            array[places] = inputs[name] if name != EXEC else True
        if self.is_packed:
            lain = np.arange(self.slots, dtype=np.int32) if is_fixed else rows
            graph.state.gather(self.state, lain)
        if is_fixed or not self._run_split(windows):
            for window in windows:
                graph.prepare(window)()
        if self.is_packed:
            graph.state.scatter(self.state, lain)
        return {name: array[places] for name, array in graph.outputs.items()}

    def _run_split(self, windows: Sequence[range]) -> bool:
        """Run windows in parts at the same time, if there are enough rows or windows; returns whether it ran
        them.
        """
        if self._split is None or self.split_from is None:
            return False
        rows, parts = sum(map(len, windows)), self._split.threads
        if self._is_short:
            parts = min(parts, max(len(windows), 2 * rows // self.split_from))
        elif rows < self.split_from:
            return False
        if parts > 1:
            self.graph.prepare_split(cut(windows, parts))()
        return parts > 1

    def warm_up(self, counts: Sequence[int]) -> None:
        """Run over several numbers of rows, after which no row is fresh, and measure the cost of runs, if it
        is used.

        Each measurement uses rows that were not just run, so that rings are read from memory, as in a call.
        The cost of a run is that of the fastest one, because sockets that share the threads' cores slow the
        others. The first call chooses the mode by medians. If the chosen mode uses parts, later calls measure
        it and ``split_from`` again, unless the graph is short; the former value stays if parts are then
        slower.
        """
        for array in self.graph.inputs.values():
            array[:] = 1  # a token, a flag, a top-1: valid input for every graph
        sessions = self._open_modes()
        runs: dict[ThreadMode, Prepare] = {
            mode: partial(self.graph.prepare, session=session) for mode, session in sessions.items()
        }
        if self._split is not None and not self._is_short:
            threads = self._split.threads
            runs[ThreadMode.PARTS] = lambda window: self.graph.prepare_split(cut([window], threads))
        needs_cost = not self.is_packed or self._split is not None
        if len(runs) == 1 and (self._is_chosen or not needs_cost):  # nothing to choose or to measure
            for window in map(range, (self.slots, *few(counts))):
                if not self._run_split([window]):
                    self.graph.prepare(window)()
            return
        with load(1 if self._is_short else self.threads):  # no load on a single thread
            choice = Choice.by(time_modes(runs, self.slots, counts))
        self.cost, self.is_spinning = choice.cost, choice.is_spinning
        before = self.split_from if self._is_chosen else None
        chosen = choice.split_from
        if self._is_short and self._split is not None:
            chosen = self.cost.split_from
        self.split_from = before if chosen is None else chosen
        split = None if self.split_from is None else self._split
        self._use(sessions[ThreadMode.SPINNING if self.is_spinning else ThreadMode.SLEEPING], split)
        self._is_chosen = True

    def _open_modes(self) -> dict[ThreadMode, onnxruntime.InferenceSession]:
        """The sessions to be compared: the current one, and one of the other mode, if it can be opened."""
        modes = (ThreadMode.SLEEPING, ThreadMode.SPINNING)
        sessions = {modes[self.is_spinning]: self._session}
        opener = self._opener
        if opener is not None and not self._is_chosen:
            self.open_split()
            if opener.spin is None and not self._is_short and opener.file_bytes <= TRIED_BYTES:
                other = opener.open_second(opener.threads, spin=not self.is_spinning)
                if other is not None:
                    sessions[modes[not self.is_spinning]] = other
        return sessions

    def open_split(self) -> None:
        """Open the session for parts, unless it is already open or there are no parts."""
        if self._opener is not None and self._split is None:
            self._use(self._session, self._opener.open_split(self._session))

    def _use(self, session: onnxruntime.InferenceSession, split: SplitSession | None) -> None:
        self._session, self._split = session, split
        self.graph.use(session, split)

    def close(self) -> None:
        """End the threads that run parts."""
        if self._opener is not None and self._opener.pool is not None:
            self._opener.pool.shutdown()

    @property
    def is_timed(self) -> bool:
        """Whether :meth:`warm_up` measures: there is a choice, or parts or windows need the cost of a run."""
        opener = self._opener
        has_parts = opener is not None and opener.pool is not None
        has_modes = opener is not None and opener.spin is None and not self._is_short
        return has_parts or has_modes or not self.is_packed

    @property
    def threads(self) -> int:
        """The number of threads that compute a step."""
        return 1 if self._opener is None else self._opener.threads

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, including a second copy for parts."""
        return 0 if self._opener is None else self._opener.file_bytes + self._copy_bytes

    @property
    def spare_bytes(self) -> int:
        """The bytes of a second copy of the weights, for parts, that is not loaded now; 0 if there is
        none.
        """
        return 0 if self._split is not None else self._copy_bytes

    @property
    def _copy_bytes(self) -> int:
        opener = self._opener
        return 0 if opener is None or opener.pool is None or self._is_short else opener.file_bytes

    @property
    def bytes(self) -> int:
        """Bytes of state of all rows, with the space for the rows of a run."""
        return self.graph.bytes + (self.state.bytes if self.is_packed else 0)
