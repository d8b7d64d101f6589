"""The number of rows: as configured, or limited by memory and time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.sizing import (
    ALONE,
    DeviceShare,
    bytes_taken,
    computed_slots,
    make_sized,
    memory_facts,
    rows_that_fit,
    warm,
    with_rings,
)
from antiphon.engine.tick_times import HostLoad
from antiphon.errors import BackendError, ConfigError
from antiphon.ipc.memory import MemoryLayout, RingBytes, leases_of, ring_bytes
from antiphon.ipc.values import Shape
from antiphon.models.costs import TickWork
from antiphon.models.spec import PipelineKind
from tests.engine.fakes import MODEL, FakeBackend, FakeClock, Row, fake_spec

AUTO = EngineConfig(memory_reserve_fraction=0.1, tick_reserve_fraction=0.0, max_slots=64)


class Workshop:
    """Makes fake backends and remembers them."""

    def __init__(
        self,
        memory: dict[str, int],
        *,
        step_s: Callable[[int], float] = lambda rows: 0.0,
        kind: PipelineKind = PipelineKind.CODEC,
        is_packed: bool = True,
        device_name: str = "",
        work: dict[str, int] | None = None,
    ) -> None:
        self.device_name, self.work = device_name, work
        self.clock = FakeClock()
        self.memory = memory
        self.step_s = step_s
        self.kind = kind
        self.is_packed = is_packed
        self.made: list[FakeBackend] = []

    def __call__(self, slots: int) -> FakeBackend:
        backend = FakeBackend(
            fake_spec(self.kind),
            slots,
            is_packed=self.is_packed,
            clock=self.clock,
            step_s=self.step_s,
            memory=self.memory,
            device_name=self.device_name,
            work=self.work,
        )
        self.made.append(backend)
        return backend

    def size(self, config: EngineConfig = AUTO, share: DeviceShare = ALONE) -> int:
        backend = make_sized(self, config, self.clock, share).backend
        assert backend is self.made[-1]
        assert [made.closed for made in self.made] == [True] * (len(self.made) - 1) + [False]
        return backend.info.slots


def test_what_prompts_and_voices_keep_counts_beside_the_weights() -> None:
    memory = {"total": 1000, "weights": 200, "caches": 300, "state_per_row": 70}
    assert Workshop(memory).size() == 5
    wanted = (
        r"9 rows do not fit: weights 200 bytes \+ caches 300 bytes \+ 9 x 70 bytes = 1,130 bytes, .*; 7 rows"
    )
    with pytest.raises(ConfigError, match=wanted):
        Workshop(memory).size(replace(AUTO, slots=9))


def test_memory_decides_when_ticks_are_fast() -> None:
    workshop = Workshop({"total": 1000, "weights": 200, "state_per_row": 70})
    assert workshop.size() == 10
    assert [made.info.slots for made in workshop.made] == [1, 8, 10]


def test_time_decides_when_memory_is_plenty_and_stops_measuring_beyond_it() -> None:
    workshop = Workshop({"total": 10**9, "weights": 0, "state_per_row": 1}, step_s=lambda rows: 0.005 * rows)
    assert workshop.size() == 16  # ticks of 40 ms hold 8 ready rows, and are met by half of all calls
    assert [made.info.slots for made in workshop.made] == [1, 8, 64, 16]
    assert [sorted({step.count for step in made.steps}) for made in workshop.made] == [
        [1],
        [8],
        [9],
        [],
    ]


class ResizableBackend(FakeBackend):
    """One that looks the same at any age, and has one way to use threads."""

    def choose_threads(self) -> None:
        pass

    def age(self, frames: int) -> None:
        pass


class ChoosingBackend(ResizableBackend):
    """Takes half the time once it has chosen its threads; ``rows_seen`` are the slots it has had."""

    rows_seen: list[int]

    def resize(self, slots: int) -> None:
        self.rows_seen.append(slots)
        self._info = replace(self.info, slots=slots)
        self.rows = [Row() for _ in range(slots)]

    def choose_threads(self) -> None:
        self.rows_seen.append(-self.info.slots)
        whole_s = self.step_s
        self.step_s = lambda rows: whole_s(rows) / 2


@pytest.mark.parametrize(("slots", "most", "left"), [(10, 6, 6), (32, 6, 6), (2, 1, 1), (10, 10, 10)])
def test_memory_that_ends_in_warm_up_costs_rows_of_auto(slots: int, most: int, left: int) -> None:
    backend = ChoosingBackend(fake_spec(), slots, most_warm_rows=most)
    backend.rows_seen = []
    assert warm(backend, lambda _: backend, AUTO, lambda *_: None) is backend
    assert (backend.warmed, backend.info.slots) == (True, left)
    rows = [slots, *backend.rows_seen]
    assert all(new >= old - max(1, old // 8) for old, new in itertools.pairwise(rows))


@pytest.mark.parametrize(("config", "slots", "most"), [(EngineConfig(slots=4), 4, 3), (AUTO, 1, 0)])
def test_memory_that_ends_in_warm_up_ends_the_start(config: EngineConfig, slots: int, most: int) -> None:
    backend = FakeBackend(fake_spec(), slots, most_warm_rows=most)
    wanted = f"memory ran out while {slots} rows were warmed up; give fewer slots: no room for {slots}"
    with pytest.raises(BackendError, match=wanted):
        warm(backend, lambda _: backend, config, lambda *_: None)


def test_operators_read_why_there_are_fewer_rows() -> None:
    def made(slots: int) -> FakeBackend:
        memory = {"total": 10**9, "weights": 0, "state_per_row": 1}
        return FakeBackend(fake_spec(), slots, memory=memory, most_warm_rows=7)

    engine = Engine(
        made, replace(AUTO, max_slots=10), metrics=EngineMetrics(CollectorRegistry(), model=MODEL)
    )
    engine.prepare()
    assert engine.info.slots == 7
    assert engine.note == "slots = auto chose 7: memory ran out while 10 rows were warmed up"


@pytest.mark.parametrize(("max_slots", "seen"), [(64, [16, -16, 1, 8, 64, 32]), (8, [8, -8, 1, 8])])
def test_threads_are_chosen_before_rows_are_timed(max_slots: int, seen: list[int]) -> None:
    clock = FakeClock()
    backend = ChoosingBackend(
        fake_spec(),
        1,
        is_packed=True,
        clock=clock,
        step_s=lambda rows: 0.005 * rows,  # as it runs before the choice: 16 slots, of which 8 are ready
        memory={"total": 10**9, "weights": 0, "state_per_row": 1},
        chooses_threads=True,
    )
    backend.rows_seen = []
    assert make_sized(lambda slots: backend, replace(AUTO, max_slots=max_slots), clock).backend is backend
    assert backend.rows_seen == seen
    fixed = replace(AUTO, slots=3)
    backend.rows_seen.clear()
    assert make_sized(lambda slots: backend, fixed, clock).backend is backend
    assert backend.rows_seen == [3]  # warm_up chooses


def test_a_backend_that_always_runs_all_its_rows_grows_until_it_is_too_slow() -> None:
    workshop = Workshop(
        {"total": 10**9, "weights": 0, "state_per_row": 1},
        step_s=lambda rows: 0.010 + 0.005 * rows,
        is_packed=False,
    )
    assert workshop.size() == 6
    assert [made.info.slots for made in workshop.made] == [1, 2, 8, 6]
    patient = Workshop({"total": 100, "weights": 0, "state_per_row": 9}, is_packed=False)
    assert patient.size() == 10
    assert [made.info.slots for made in patient.made] == [1, 8, 10]


def test_a_machine_too_slow_for_one_row_has_one_row() -> None:
    workshop = Workshop({"weights": 0, "state_per_row": 1}, step_s=lambda rows: 1.0)
    assert workshop.size() == 1
    assert len(workshop.made) == 1


def test_max_slots_bounds_both() -> None:
    assert Workshop({"total": 10**9, "weights": 0, "state_per_row": 1}).size() == 64


def test_a_number_of_slots_is_taken_as_it_is_or_refused_with_the_bytes() -> None:
    memory = {"total": 1000, "weights": 200, "state_per_row": 100}
    workshop = Workshop(memory)
    assert workshop.size(EngineConfig(slots=8)) == 8
    assert [made.info.slots for made in workshop.made] == [1, 8]
    wanted = r"9 rows do not fit: weights 200 bytes \+ 9 x 100 bytes = 1,100 bytes, but there are 1,000"
    greedy = Workshop(memory)
    with pytest.raises(ConfigError, match=wanted):
        greedy.size(EngineConfig(slots=9))
    assert [made.closed for made in greedy.made] == [True]


def test_rows_that_do_not_fit_are_never_asked_for() -> None:
    workshop = Workshop({"total": 1000, "weights": 200, "state_per_row": 100})

    def factory(slots: int) -> FakeBackend:
        if slots > 8:
            raise MemoryError(f"{slots} rows")
        return workshop(slots)

    with pytest.raises(ConfigError, match=r"100000000 rows do not fit: .* 8 rows would fit"):
        make_sized(factory, EngineConfig(slots=100_000_000), workshop.clock)


@pytest.mark.parametrize("error", [MemoryError("out of memory"), RuntimeError("out of memory")])
def test_memory_that_runs_out_nevertheless_is_a_backend_error(error: Exception) -> None:
    workshop = Workshop({})

    def factory(slots: int) -> FakeBackend:
        if slots > 1:
            raise error
        return workshop(slots)

    with pytest.raises(BackendError, match="a backend with 7 rows could not be made: out of memory"):
        make_sized(factory, EngineConfig(slots=7), workshop.clock)


def test_a_number_is_needed_where_the_backend_says_nothing_about_memory() -> None:
    with pytest.raises(
        ConfigError, match="backend fake does not report the memory of a row; give a number of slots"
    ):
        Workshop({}).size()
    assert Workshop({}).size(EngineConfig(slots=3)) == 3


def test_the_cpu_has_the_memory_of_the_host() -> None:
    assert Workshop({"weights": 0, "state_per_row": 1 << 10}).size() == 64
    with pytest.raises(ConfigError, match="not even one row fits"):
        Workshop({"weights": 0, "state_per_row": 1 << 60}).size()


def test_ready_rows_are_timed_apart_as_those_of_calls_are() -> None:
    workshop = Workshop(
        {"total": 1000, "weights": 0, "state_per_row": 10}, step_s=lambda rows: 0.001 + 0.003 * rows
    )
    workshop.size()
    timed = [np.diff(step.rows) for made in workshop.made for step in made.steps if step.count > 2]
    assert any(gaps.max() > 1 for gaps in timed)


def test_tts_rows_cannot_be_timed_without_a_text() -> None:
    workshop = Workshop({"total": 100, "weights": 0, "state_per_row": 9}, kind=PipelineKind.TTS)
    assert workshop.size() == 10
    assert workshop.made[-1].steps == []


@pytest.mark.parametrize(("call_s", "rows", "is_told"), [(0.0, 14, False), (0.001, 9, True)])
def test_rows_of_tts_by_the_time_of_one_next_to_sockets(call_s: float, rows: int, is_told: bool) -> None:
    load = HostLoad(call_s, call_s / 2, cores=1, loops=1)

    def factory(slots: int) -> FakeBackend:
        return FakeBackend(fake_spec(PipelineKind.TTS), slots, row_ms=5.5, cpu_threads=1)

    sized = make_sized(factory, AUTO, FakeClock(), DeviceShare(load=load))
    assert (sized.backend.info.slots, bool(sized.assumed)) == (rows, is_told)


def test_models_that_share_a_device_leave_one_another_room() -> None:
    """Three of the same make: each gets a third of the memory, in whatever order, and together they fit."""
    taken: dict[str, int] = {}
    rows = []
    for waiting in (3, 2, 1):
        workshop = Workshop({"total": 1000, "weights": 20, "state_per_row": 10})
        rows.append(workshop.size(share=DeviceShare(taken, models=3, models_waiting=waiting)))
        device = workshop.made[-1].info.device
        taken = {device: taken.get(device, 0) + bytes_taken(workshop.made[-1].info)}
    assert rows == [28, 28, 28]
    assert sum(taken.values()) == 3 * (20 + 28 * 10) <= 900


def test_ticks_of_models_that_share_a_device_share_its_time() -> None:
    def size(models: int) -> int:
        workshop = Workshop(
            {"total": 10**9, "weights": 0, "state_per_row": 1}, step_s=lambda rows: 0.0018 * rows
        )
        return workshop.size(share=DeviceShare(models=models))

    assert size(1) == 44
    assert size(2) == 22


def test_another_device_is_not_shared() -> None:
    workshop = Workshop({"total": 1000, "weights": 200, "state_per_row": 70})
    assert workshop.size(share=DeviceShare({"cuda:7": 900})) == 10


class ElasticBackend(ResizableBackend):
    """One that changes its number of rows in place."""

    largest = 64

    def resize(self, slots: int) -> None:
        if slots > self.largest:
            raise RuntimeError("out of memory")
        self.asked.append(slots)
        super().__init__(self.spec, slots, clock=self.clock, step_s=self.step_s, memory=self.memory)

    @classmethod
    def one(cls, workshop: Workshop) -> ElasticBackend:
        backend = cls(fake_spec(), 1, clock=workshop.clock, step_s=workshop.step_s, memory=workshop.memory)
        backend.asked, backend.memory = [], workshop.memory
        return backend

    asked: list[int]
    memory: dict[str, int]


@pytest.mark.parametrize(("config", "asked"), [(EngineConfig(slots=8), [8]), (AUTO, [4, 10, 8])])
def test_a_backend_that_can_be_resized_is_made_once(config: EngineConfig, asked: list[int]) -> None:
    memory = {"total": 1000, "weights": 200, "state_per_row": 70}
    workshop = Workshop(memory, step_s=lambda rows: 0.010 * rows)
    one = ElasticBackend.one(workshop)

    def factory(slots: int) -> FakeBackend:
        assert slots == 1, "its weights would be loaded a second time"
        return one

    assert make_sized(factory, config, workshop.clock).backend is one
    assert one.asked == asked
    assert not one.closed


def test_memory_that_runs_out_while_a_backend_is_resized_is_a_backend_error() -> None:
    workshop = Workshop({})
    with pytest.raises(BackendError, match="a backend with 65 rows could not be made: out of memory"):
        make_sized(lambda _: ElasticBackend.one(workshop), EngineConfig(slots=65), workshop.clock)


def test_rings_count_on_the_machine_beside_the_rows() -> None:
    workshop = Workshop({"total": 1000, "weights": 200, "state_per_row": 70})
    config = replace(AUTO, slots=None)
    backend = make_sized(workshop, config, workshop.clock, ALONE, lambda _: RingBytes(100, 30)).backend
    assert backend.info.slots == 6  # 900 usable, less 200 and 100, in parts of 70 + 30
    with pytest.raises(
        ConfigError,
        match=r"8 rows do not fit: weights 200 bytes \+ spare rings 100 bytes \+ 8 x 100 bytes",
    ):
        make_sized(workshop, replace(AUTO, slots=8), workshop.clock, ALONE, lambda _: RingBytes(100, 30))


def test_rings_of_a_card_are_in_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.engine.sizing.host_bytes", lambda: 1000)
    workshop = Workshop({"total": 10**9, "weights": 200, "state_per_row": 70})
    backend = workshop(1)
    card = replace(backend.info, device="cuda:0")
    share = DeviceShare({"cpu": 300})
    memories = with_rings(memory_facts(card, share), card, RingBytes(100, 30), share)
    rows = [rows_that_fit(it, reserve_fraction=0.1, at_most=10**6) for it in memories]
    assert rows == [10**6, (900 - 300 - 100) // 30]


@pytest.mark.parametrize("pools", [1, 2, 3, 15])
@pytest.mark.parametrize("kind", [PipelineKind.DUPLEX, PipelineKind.STT, PipelineKind.TTS])
def test_rings_take_no_more_than_is_counted(pools: int, kind: PipelineKind) -> None:
    shape = Shape.of(fake_spec(kind), input_frames=16, output_frames=25)
    rings = ring_bytes(shape, pools)
    for slots in (1, 7, 64, 2048):
        total = MemoryLayout(shape, pools, leases_of(slots, pools)).total_bytes
        assert total <= rings.fixed + slots * rings.row <= 1.1 * total + pools * 20 * shape.block.itemsize


MILLISECOND_A_ROW = asdict(
    TickWork(
        weights_bytes=0, frame_bytes=4_214_000, context=1000, row_bytes=0, passes=0,
        layers=0, cross_layers=0, steps=0, step_layers=0, weight_bits=16,
    )
)  # fmt: skip
"""A ring of 4.214 GB a row, which an H200 reads in 1 ms at 98 % of its copy rate.

The host's 0.65 ms, 22 kernels of 3.7 us and a choice of 50 us come once.
"""

FAST = {"total": 10**9, "weights": 0, "state_per_row": 1}


@pytest.mark.parametrize(
    ("card", "ready", "tick_ms"),
    [("NVIDIA H200", 39, 0.7814 + 39), ("NVIDIA H100 80GB HBM3", 27, 0.7814 + 27 * 4.3 / 3)],
)
def test_a_known_cards_constants_give_the_slots_by_hand_arithmetic(
    card: str, ready: int, tick_ms: float
) -> None:
    """Ticks of 40 ms hold 39 rows of a millisecond, and are met by half of all calls."""
    info = Workshop(FAST, device_name=card, work=MILLISECOND_A_ROW)(1).info
    found = computed_slots(info, replace(AUTO, max_slots=500))
    assert found is not None
    assert (found.ready_rows, found.slots) == (ready, 2 * ready)
    assert found.tick_ms == pytest.approx(tick_ms)
    assert found.card.is_measured is ("H100" in card)
    halved = computed_slots(info, replace(AUTO, max_slots=500), models=2)
    assert halved is not None
    assert halved.ready_rows == (20 - 0.78) // (1 if "H200" in card else 4.3 / 3)
    crowded = computed_slots(info, replace(AUTO, max_slots=500), models=50)  # ticks of 0.8 ms
    assert crowded is not None
    assert (crowded.slots, crowded.ready_rows) == (0, 1)
    assert crowded.limit_ms == pytest.approx(0.8)


def test_a_gpu_is_first_resized_to_the_computed_number(caplog: pytest.LogCaptureFixture) -> None:
    workshop = Workshop(
        FAST, step_s=lambda rows: 0.0003 * rows, device_name="NVIDIA H200", work=MILLISECOND_A_ROW
    )
    with caplog.at_level("DEBUG"):
        assert workshop.size(replace(AUTO, max_slots=500)) == 266
    assert [made.info.slots for made in workshop.made] == [1, 78, 500, 266]
    counts = [sorted({step.count for step in made.steps}) for made in workshop.made]
    assert counts == [[1], [8, 64, 78], [148], []]
    first, last = (record for record in caplog.records if record.name == "antiphon.engine.sizing")
    assert (first.message, last.message) == ("slots computed", "slots chosen")
    fields = first.__dict__["fields"]
    assert fields["constants"] == "computed, not measured"
    assert (fields["card"], fields["slots"], fields["ready_rows"]) == ("H200", 78, 39)


def test_a_measured_tick_overrules_what_is_computed() -> None:
    workshop = Workshop(
        FAST, step_s=lambda rows: 0.005 * rows, device_name="NVIDIA H200", work=MILLISECOND_A_ROW
    )
    assert workshop.size(replace(AUTO, max_slots=500)) == 16
    assert [made.info.slots for made in workshop.made] == [1, 78, 16]


def test_rows_of_text_to_speech_are_those_computed() -> None:
    """All are ready in every tick, which may take the frame: 79 of a millisecond in 80."""
    words = {"device_name": "NVIDIA H200", "work": MILLISECOND_A_ROW}
    workshop = Workshop(FAST, kind=PipelineKind.TTS, **words)  # type: ignore[arg-type]
    assert workshop.size(replace(AUTO, max_slots=500)) == 79


def test_an_unknown_card_is_only_timed() -> None:
    workshop = Workshop(FAST, device_name="NVIDIA T4", work=MILLISECOND_A_ROW)
    assert workshop.size() == 64
    assert [made.info.slots for made in workshop.made] == [1, 8, 64]
