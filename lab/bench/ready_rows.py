"""What it costs to run the rows that are ready, of S whose state lies where it is: by every way there is.

    python -m lab.bench.ready_rows                               tiny and tiny-stt, 1 to 16 of 32 rows
    python -m lab.bench.ready_rows out/bench/stt-1b-int4 --stage lm --threads 2 --turns 5
    python -m lab.bench.ready_rows --invariance                  stages that give a row the same bits anywhere

All rings are full. The ways, each for random and for neighbouring rows:

    windows   state stays; a run for each window of neighbouring rows, gaps bridged by the measured cost
    packed    all state of the rows is copied together, run and copied back
    gather    the graph takes row numbers, gathers whole rings itself, and writes new positions only
    prefix    one run from row 0 to the highest ready row, up to the next power of two
    moves     ready rows are swapped into the first places, then run there

The clock is the thread's own CPU time where graphs run on one thread, which other programs hardly change.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from antiphon.backends.base import IntArray
from antiphon.backends.onnx.executor import row_counts
from antiphon.backends.onnx.factory import VOICE, stages
from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.sessions import open_session, pick_provider
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.onnx.windows import RunCost, split
from antiphon.models.catalog import load_checkpoint
from antiphon.models.graphs import GraphFormat
from lab.bench.gathering_graph import GatheringGraph, ring_outputs
from lab.bench.harness import Results, Values, machine_line, tell
from lab.bench.onnx_graphs import fill_rows

Way: TypeAlias = Callable[[IntArray], None]
COUNTS: Final = (1, 4, 8, 16)
PATTERNS: Final = ("random", "neighbours")
WAYS: Final = ("windows", "packed", "gather", "prefix", "moves")
UNTIMED_TURNS: Final = 2
SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Setting:
    """How it is measured."""

    slots: int
    threads: int
    turns: int

    @property
    def clock(self) -> Callable[[], float]:
        """The clock that counts."""
        return time.thread_time if self.threads == 1 else time.perf_counter

    def time_ms(self, call: Callable[[], object]) -> float:
        """Milliseconds of one call."""
        begin_s = self.clock()
        call()
        return 1000.0 * (self.clock() - begin_s)

    def graph(self, path: Path, form: GraphFormat) -> Graph:
        """A graph whose rows are all far in their calls."""
        graph = Graph(open_session(path, pick_provider("cpu")[1], self.threads), form, self.slots)
        fill_rows(graph)
        return graph


def measure_stage(path: Path, form: GraphFormat, setting: Setting) -> Values:
    """Milliseconds of a tick by count, pattern and way; and what runs and rows cost."""
    stage = Stage(open_session(path, pick_provider("cpu")[1], setting.threads), form, setting.slots)
    stage.warm_up(row_counts(setting.slots))
    graph, cost = stage.graph, stage.cost
    fill_rows(graph)
    dense = partial(take_turns, {"dense": lambda rows: graph.run(range(rows.size))}, setting=setting)
    dense_ms = {n: dense(count=n, pattern="neighbours")["dense"] for n in row_counts(setting.slots)}
    ways = dict(make_ways(graph, path, form, cost, setting))
    ready = {}
    for count in (count for count in COUNTS if count <= setting.slots):
        for pattern in PATTERNS:
            ready[f"{count} {pattern}"] = take_turns(ways, count, pattern, setting)
    return {"run_ms": cost.run_ms, "row_ms": cost.row_ms, "dense_ms": dense_ms, "ready_ms": ready}


def take_turns(ways: dict[str, Way], count: int, pattern: str, setting: Setting) -> Values:
    """The median of several draws of rows, every way meeting the same ones."""
    random, found = np.random.default_rng(SEED), dict[str, list[float]]()
    for turn in range(setting.turns + UNTIMED_TURNS):
        rows = draw(random, count, pattern, setting.slots)
        for name, way in ways.items():
            time_ms = setting.time_ms(lambda: way(rows))  # noqa: B023
            if turn >= UNTIMED_TURNS:
                found.setdefault(name, []).append(time_ms)
    return {name: statistics.median(times) for name, times in found.items()}


def draw(random: np.random.Generator, count: int, pattern: str, slots: int) -> IntArray:
    """Row numbers int32 ``[count]``, ascending."""
    if pattern == "neighbours":
        return np.arange(count, dtype=np.int32) + np.int32(random.integers(0, slots - count + 1))
    return np.sort(random.permutation(slots)[:count]).astype(np.int32)


def make_ways(
    graph: Graph, path: Path, form: GraphFormat, cost: RunCost, setting: Setting
) -> Iterator[tuple[str, Way]]:
    """The ways of running rows of ``graph``; where there is no state there is but one."""
    if not form.state:
        yield "packed", lambda rows: graph.run(range(rows.size))
        return

    def windows(rows: IntArray) -> None:
        for window in split(rows.tolist(), cost):
            graph.run(window)

    yield "windows", windows
    desk = setting.graph(path, form)

    def packed(rows: IntArray) -> None:
        desk.state.gather(graph.state, rows)
        desk.run(range(rows.size))
        desk.state.scatter(graph.state, rows)

    yield "packed", packed
    if ring_outputs(form):
        yield "gather", GatheringGraph(path, form, graph.state, setting.threads).run
    top = setting.slots
    yield "prefix", lambda rows: graph.run(range(min(top, 1 << int(rows.max()).bit_length())))
    place = np.arange(setting.slots)  # where each row's state lies

    def moves(rows: IntArray) -> None:
        inside = [row for row in range(top) if place[row] < rows.size and row not in rows]
        outside = [row for row in rows.tolist() if place[row] >= rows.size]
        for one, other in zip(outside, inside, strict=True):
            here, there = place[one], place[other]
            for array in graph.state.arrays.values():
                array[[here, there]] = array[[there, here]]
            place[one], place[other] = there, here
        graph.run(range(rows.size))

    yield "moves", moves


def invariance(path: Path, form: GraphFormat, setting: Setting) -> Values:
    """Where a row's outputs and next state differ from those of a run by itself: counts, and by how much.

    Each row in turn gets the inputs and the state of one that ran alone, beside rows of other contents.
    """
    graph, random = setting.graph(path, form), np.random.default_rng(SEED)
    tensors = {**graph.inputs, **graph.state.arrays}
    for name, array in tensors.items():
        if array.dtype == np.float32:
            array[:] = random.normal(0, 0.1, array.shape)
        elif array.dtype == np.int64 and not name.endswith("position"):
            array[:] = random.integers(1, 30, array.shape)
    kept = {name: array.copy() for name, array in tensors.items()}
    results = graph.outputs | graph.state.arrays
    worst: dict[int, float] = {}

    def run(window: range) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        for name, array in tensors.items():
            array[:] = kept[name]
        graph.run(window)
        return {name: array.copy() for name, array in results.items()}

    alone = [run(range(row, row + 1)) for row in range(setting.slots)]
    for count in range(2, setting.slots + 1):
        found = run(range(count))
        for row in range(count):
            for name, array in found.items():
                if not np.array_equal(array[row], alone[row][name][row]):
                    apart = np.abs(array[row].astype(np.float64) - alone[row][name][row]).max()
                    worst[count] = max(worst.get(count, 0.0), float(apart))
    return {"differs": worst, "counts": setting.slots}


def render(model: str, stage: str, found: Values) -> str:
    """A table of one stage."""
    if "differs" in found:
        differs = found["differs"]
        if not differs:
            return f"| {model} | {stage} | yes, 1 to {found['counts']} rows | 0 |"
        counts = ", ".join(map(str, differs))
        return f"| {model} | {stage} | differs at {counts} | {max(differs.values()):.0e} |"
    names = [way for way in WAYS if way in next(iter(found["ready_ms"].values()))]
    lines = [
        f"\n### {model} {stage}: {found['run_ms']:.2f} ms a run, {found['row_ms']:.2f} ms a row\n",
        f"| ready rows | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
    ]
    for key, times in found["ready_ms"].items():
        lines.append(f"| {key} | {' | '.join(f'{times[name]:.2f}' for name in names)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="*", default=["tiny", "tiny-stt"], help="[%(default)s]")
    parser.add_argument("--stage", action="append", help="encode, lm, depformer or decode [all]")
    parser.add_argument("--slots", type=int, default=32, help="rows there are [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--turns", type=int, default=15, help="draws of rows [%(default)s]")
    parser.add_argument("--invariance", action="store_true", help="compare bits instead of times")
    parser.add_argument("--out", type=Path, default=Path("out/bench/ready-rows.json"), help="[%(default)s]")
    options = parser.parse_args(argv)
    setting = Setting(options.slots, options.threads, options.turns)
    results = Results(options.out, settings=vars(options) | {"out": None}, resume=False)
    print(f"{machine_line(results.values)}; {setting.slots} rows, {setting.threads} threads; medians in ms")
    for model in options.model:
        checkpoint = load_checkpoint(model)
        for stage in options.stage or [stage for stage in stages(checkpoint.spec) if stage != VOICE]:
            tell(f"{model} {stage}")
            form = checkpoint.graphs[stage]
            measure = invariance if options.invariance else measure_stage
            run = partial(measure, checkpoint.file(form.file), form, setting)
            print(render(model, stage, results.attempt(f"{model} {stage}", run)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
