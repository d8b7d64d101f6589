"""One stage over given rows: windows in place and packed copies give the same results."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor as Pool
from functools import partial
from typing import Any

import numpy as np
import pytest

from antiphon.backends.base import IntArray
from antiphon.backends.onnx import sessions
from antiphon.backends.onnx import stage as module
from antiphon.backends.onnx.autotune import Prepare, RunCost, ThreadMode, Times
from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.sessions import Opener, pick_provider
from antiphon.backends.onnx.stage import Stage
from antiphon.errors import CheckpointFormatError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.manifest import Array

ROWS, TICKS = 7, 12
FILE_BYTES = 1000
TOLERANCE = 1e-2
"""Products of other sizes differ in the last bits, and an input in the middle of two bytes is then rounded
to the other one."""


def opener_of(
    name: str,
    threads: int = 1,
    *,
    spin: bool | None = False,
    pool: Pool | None = None,
    is_short: bool = False,
) -> Opener:
    checkpoint = load_checkpoint("tiny")
    path = checkpoint.file(checkpoint.graphs[name].file)
    return Opener(path, pick_provider(None)[1], threads, spin, pool, FILE_BYTES, is_short)


def stage_of(name: str) -> Stage:
    form = load_checkpoint("tiny").graphs[name]
    return Stage(opener_of(name).open(spin=False), form, ROWS)


def ticks() -> list[tuple[IntArray, Array]]:
    """Rows in any order, and codes for each."""
    random = np.random.default_rng(4)
    named = [random.permutation(ROWS)[: 1 + tick % ROWS].astype(np.int32) for tick in range(TICKS)]
    return [(rows, random.integers(0, 512, (rows.size, 8))) for rows in named]


def run(stage: Stage, *, is_fixed: bool = False) -> list[Array]:
    return [stage.run(rows, {"codes": codes}, is_fixed=is_fixed)["pcm"] for rows, codes in ticks()]


@pytest.mark.parametrize("cost", [RunCost(0.0, 1.0), RunCost(1.5, 1.0), RunCost(1.0, 0.0)])
def test_windows_and_packed_rows_compute_the_same(monkeypatch: pytest.MonkeyPatch, cost: RunCost) -> None:
    packed, fixed = stage_of("decode"), stage_of("decode")
    monkeypatch.setattr(module, "PACKED_STATE_BYTES", 0)
    lying = stage_of("decode")
    lying.cost = cost
    assert (packed.is_packed, lying.is_packed) == (True, False)
    for one, two, three in zip(run(packed), run(lying), run(fixed, is_fixed=True), strict=True):
        np.testing.assert_allclose(one, three, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(two, three, rtol=0, atol=TOLERANCE)
    for name, array in packed.state.arrays.items():
        if name.endswith("position"):
            np.testing.assert_array_equal(array, lying.state.arrays[name])


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("name", ["decode", "lm"])
def test_idle_rows_keep_their_state_bit_for_bit(name: str, is_fixed: bool) -> None:
    stage = stage_of(name)
    stage.cost = RunCost(1.0, 0.0)  # every gap is bridged
    inputs = {"codes": 3} if name == "decode" else {"tokens": 3}
    for _ in range(3):
        stage.run(np.arange(ROWS, dtype=np.int32), inputs)
    before = {name: array.copy() for name, array in stage.state.arrays.items()}
    stage.run(np.array([5, 1], np.int32), inputs, is_fixed=is_fixed)
    for name, array in stage.state.arrays.items():
        np.testing.assert_array_equal(array[[0, 2, 3, 4, 6]], before[name][[0, 2, 3, 4, 6]])
    assert (stage.state.arrays[f"{'decoder_transformer' if 'codes' in inputs else 'lm'}.position"] > 0).all()


def test_what_runs_is_what_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[range] = []
    monkeypatch.setattr(Graph, "prepare", lambda self, window: partial(seen.append, window))
    lying, packed, rows = stage_of("lm"), stage_of("decode"), np.array([6, 0, 2], np.int32)
    for stage, is_fixed in ((lying, False), (lying, True), (packed, False), (packed, True)):
        inputs = dict.fromkeys(stage.graph.inputs, 1)
        stage.run(rows, inputs, is_fixed=is_fixed)
        assert seen == stage.windows(rows, is_fixed=is_fixed)
        seen.clear()
    assert lying.windows(rows) == [range(1), range(2, 3), range(6, 7)]
    assert packed.windows(rows) == [range(3)]
    assert lying.windows(rows, is_fixed=True) == packed.windows(rows, is_fixed=True) == [range(ROWS)]


def test_no_run_copies_a_ring_of_the_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Around the graph itself, a run writes no ring."""
    stage = stage_of("lm")
    monkeypatch.setattr(Graph, "prepare", lambda self, window: lambda: None)
    for name, array in stage.state.arrays.items():
        if name.endswith((".k", ".v")):
            array.flags.writeable = False
    stage.run(np.array([4, 2], np.int32), {"tokens": 1})
    assert stage.graph.state is stage.state


def stage_in_parts(name: str, pool: Pool, *, spin: bool | None = False) -> Stage:
    opener = opener_of(name, 2, spin=spin, pool=pool)
    stage = Stage(opener.open(spin=False), load_checkpoint("tiny").graphs[name], ROWS, opener)
    stage.open_split()
    stage.split_from = 2
    return stage


@pytest.mark.parametrize("lies", [False, True])
def test_parts_at_the_same_time_compute_what_one_run_does(
    monkeypatch: pytest.MonkeyPatch, lies: bool
) -> None:
    if lies:
        monkeypatch.setattr(module, "PACKED_STATE_BYTES", 0)
    seen: list[Sequence[range]] = []
    prepare_split = Graph.prepare_split

    def watched(self: Graph, parts: Sequence[Sequence[range]]) -> Callable[[], None]:
        seen.extend(parts)
        return prepare_split(self, parts)

    monkeypatch.setattr(Graph, "prepare_split", watched)
    with Pool(1) as pool:
        stage, plain = stage_in_parts("decode", pool), stage_of("decode")
        for stage_or_plain in (stage, plain):
            stage_or_plain.cost = RunCost(0.0, 1.0)
        for one, two in zip(run(stage), run(plain), strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=TOLERANCE)
        for name, array in stage.state.arrays.items():
            if name.endswith("position"):
                np.testing.assert_array_equal(array, plain.state.arrays[name])
    assert sum(len(window) for part in seen for window in part) == sum(
        r.size for r, _ in ticks() if r.size > 1
    )


def test_a_part_that_fails_is_raised_when_no_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No state is touched before every part has ended."""
    ended: list[int] = []

    def fails(window: range) -> None:
        if window.start == 0:
            raise RuntimeError("out of memory")
        time.sleep(0.05)
        ended.append(window.start)

    monkeypatch.setattr(Graph, "prepare", lambda self, window, session: partial(fails, window))
    with Pool(1) as pool:
        stage = stage_in_parts("decode", pool)
        with pytest.raises(RuntimeError, match="out of memory"):
            stage.run(np.arange(4, dtype=np.int32), {"codes": 1})
        assert ended == [2]


def given(monkeypatch: pytest.MonkeyPatch, ms: dict[ThreadMode, float]) -> list[set[ThreadMode]]:
    """Let every run of a way take so long; which ways were timed."""
    asked: list[set[ThreadMode]] = []

    def timed(runs: Mapping[ThreadMode, Prepare], slots: int, counts: Sequence[int]) -> Times:
        asked.append(set(runs))
        for run in runs.values():
            run(range(slots))()
        return {way: {count: [ms[way]] for count in counts} for way in runs}

    monkeypatch.setattr(module, "time_modes", timed)
    return asked


def test_without_a_choice_runs_are_timed_only_where_windows_need_their_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = given(monkeypatch, {ThreadMode.SLEEPING: 2.0})
    packed, lying = stage_of("decode"), stage_of("lm")
    packed.warm_up((1, 2, 4, 7))
    assert (packed.is_packed, asked) == (True, [])
    lying.warm_up((1, 2, 4, 7))
    assert (lying.is_packed, asked) == (False, [{ThreadMode.SLEEPING}])


def test_a_short_graph_has_one_session_whose_threads_share_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part's rows take at least as long as three runs without rows."""
    times = {1: [1.6], 2: [2.6], 4: [4.6]}
    monkeypatch.setattr(module, "time_modes", lambda runs, _slots, _counts: dict.fromkeys(runs, times))
    opened: list[int] = []
    open_session = sessions.open_session

    def noted(*arguments: Any, **options: Any) -> Any:
        opened.append(arguments[2])
        return open_session(*arguments, **options)

    monkeypatch.setattr(sessions, "open_session", noted)
    seen: list[int] = []
    prepare_split = Graph.prepare_split

    def watched(self: Graph, parts: Sequence[Sequence[range]]) -> Callable[[], None]:
        seen.append(len(parts))
        return prepare_split(self, parts)

    monkeypatch.setattr(Graph, "prepare_split", watched)
    with Pool(2) as pool:
        opener = opener_of("decode", 3, spin=None, pool=pool, is_short=True)
        stage = Stage(opener.open(spin=False), load_checkpoint("tiny").graphs["decode"], ROWS, opener)
        stage.warm_up((1, 2, 4, 7))
        assert [stage.cost.run_ms, stage.cost.row_ms] == pytest.approx([0.6, 1.0])
        assert (stage.split_from, stage.is_spinning, stage.spare_bytes) == (4, False, 0)
        assert stage.weight_bytes == FILE_BYTES
        for count in range(1, ROWS + 1):
            stage.run(np.arange(count, dtype=np.int32), {"codes": 1})
    assert (opened, seen) == ([1], [2, 2, 3, 3])


def test_windows_of_a_short_graph_that_lie_apart_run_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They need no additional run."""
    monkeypatch.setattr(module, "PACKED_STATE_BYTES", 0)
    given(monkeypatch, {ThreadMode.SLEEPING: 2.0})
    plain = stage_of("decode")
    with Pool(1) as pool:
        opener = opener_of("decode", 2, spin=None, pool=pool, is_short=True)
        stage = Stage(opener.open(spin=False), load_checkpoint("tiny").graphs["decode"], ROWS, opener)
        stage.warm_up((1, 2, 4, 7))
        stage.cost, stage.split_from = RunCost(1.0, 0.9), 100
        for each in (stage, plain):
            each.state.reset(range(ROWS))
        seen: list[Sequence[Sequence[range]]] = []
        prepare_split = Graph.prepare_split

        def watched(self: Graph, parts: Sequence[Sequence[range]]) -> Callable[[], None]:
            seen.append(parts)
            return prepare_split(self, parts)

        monkeypatch.setattr(Graph, "prepare_split", watched)
        rows, codes = np.array([0, 3, 4, 6], np.int32), np.arange(32).reshape(4, 8)
        pcm = stage.run(rows, {"codes": codes})["pcm"]
        stage.run(rows[1:3], {"codes": codes[1:3]})
        np.testing.assert_allclose(pcm, plain.run(rows, {"codes": codes})["pcm"], rtol=0, atol=TOLERANCE)
    assert seen == [[[range(1), range(3, 5)], [range(5, 7)]]]  # row 5 is bridged


@pytest.mark.parametrize(("run_ms", "row_ms", "rows"), [(0.0, 1.0, 2), (2.5, 1.0, 16), (1.0, 0.0, None)])
def test_parts_begin_where_rows_take_three_runs(run_ms: float, row_ms: float, rows: int | None) -> None:
    assert RunCost(run_ms, row_ms).split_from == rows


def test_a_second_copy_of_the_weights_that_serves_no_parts_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    ms = {ThreadMode.SLEEPING: 2.0, ThreadMode.PARTS: 3.0}
    given(monkeypatch, ms)
    opened: list[weakref.ref[object]] = []
    open_session = sessions.open_session

    def noted(*arguments: Any, **options: Any) -> Any:
        session = open_session(*arguments, **options)
        opened.append(weakref.ref(session))
        return session

    monkeypatch.setattr(sessions, "open_session", noted)
    with Pool(1) as pool:
        stage = stage_in_parts("decode", pool)
        _, second = opened
        stage.warm_up((1, 2, 4, 7))
        assert (stage.split_from, stage.spare_bytes) == (None, FILE_BYTES)
        assert second() is None
        ms[ThreadMode.PARTS] = 1.0
        stage.warm_up((1, 2, 4, 7))
        assert (stage.split_from, stage.spare_bytes) == (None, FILE_BYTES)  # what was let go stays so
        assert run(stage)[-1].shape == (5, 1920)


def test_parts_that_won_go_on_where_they_lose_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots were counted with them."""
    ms = {ThreadMode.SLEEPING: 2.0, ThreadMode.PARTS: 1.0}
    asked = given(monkeypatch, ms)
    with Pool(1) as pool:
        stage = stage_in_parts("decode", pool)
        stage.warm_up((2, 4))
        assert (stage.split_from, stage.spare_bytes) == (2, 0)
        ms[ThreadMode.PARTS] = 3.0
        stage.warm_up((1, 2, 4, 7))
        assert (stage.split_from, stage.spare_bytes) == (2, 0)
        ms[ThreadMode.PARTS] = 1.0
        stage.warm_up((1, 2, 4, 7))
        assert (stage.split_from, stage.spare_bytes) == (1, 0)
        assert asked == 3 * [{ThreadMode.SLEEPING, ThreadMode.PARTS}]
        assert run(stage)[-1].shape == (5, 1920)


@pytest.mark.parametrize(("spinning_ms", "is_spinning"), [(1.8, True), (1.95, False), (3.0, False)])
def test_threads_spin_where_that_was_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, spinning_ms: float, is_spinning: bool
) -> None:
    asked = given(
        monkeypatch, {ThreadMode.SLEEPING: 2.0, ThreadMode.SPINNING: spinning_ms, ThreadMode.PARTS: 9.0}
    )
    with Pool(1) as pool:
        stage = stage_in_parts("decode", pool, spin=None)
        stage.warm_up((1, 2, 4))
        stage.allocate(ROWS - 2)
        stage.warm_up((1, 2, 4, 5))  # with other rows, in the way that was chosen
        assert stage.is_spinning is is_spinning
        assert asked == [set(ThreadMode)]
        stage.allocate(ROWS)
        assert run(stage)[-1].shape == (5, 1920)


@pytest.mark.parametrize(("spin", "way"), [(False, ThreadMode.SLEEPING), (True, ThreadMode.SPINNING)])
def test_what_was_asked_for_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, spin: bool, way: ThreadMode
) -> None:
    asked = given(monkeypatch, {way: 1.0, ThreadMode.PARTS: 2.0})
    with Pool(1) as pool:
        stage = stage_in_parts("decode", pool, spin=spin)
        stage.warm_up((1, 2))
        assert (stage.is_spinning, asked) == (spin, [{way, ThreadMode.PARTS}])


def test_a_graph_that_a_machine_may_hold_once_is_not_opened_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRIED_BYTES", FILE_BYTES - 1)
    asked = given(monkeypatch, {ThreadMode.SLEEPING: 1.0})
    opener = opener_of("decode", 2, spin=None)
    stage = Stage(opener.open(spin=False), load_checkpoint("tiny").graphs["decode"], ROWS, opener)
    stage.warm_up((1, 2))
    assert (stage.is_spinning, asked) == (False, [])


def test_a_second_session_that_cannot_be_opened_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise CheckpointFormatError("decode.onnx cannot be run: bad allocation")

    asked = given(monkeypatch, {ThreadMode.SLEEPING: 1.0})
    with Pool(1) as pool:
        opener = opener_of("decode", 2, spin=None, pool=pool)
        stage = Stage(opener.open(spin=False), load_checkpoint("tiny").graphs["decode"], ROWS, opener)
        monkeypatch.setattr(sessions, "open_session", full)
        stage.warm_up((1, 2))
        assert (stage.is_spinning, stage.split_from, asked) == (False, None, [])
        assert stage.spare_bytes == FILE_BYTES
        assert run(stage)[-1].shape == (5, 1920)
    assert caplog.text.count("graph not opened twice") == 2
