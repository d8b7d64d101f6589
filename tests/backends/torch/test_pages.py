"""Paged rings equal contiguous rings bit by bit: snapshots, restores and reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.backends.base import PageCount, StepInputs, StepOutputs
from antiphon.backends.host import FAILURES_IN_A_ROW, HostBackend
from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.loading import make
from antiphon.backends.torch.modules.attention import KVRing
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.state import PackedStep, Run, State
from antiphon.errors import ConfigError, StepError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.prompt import Prompt
from tests.support.make_checkpoint import make_checkpoint

CAPACITY, WIDTH = 150, 16
SEEN = (0, 1, 64, 149, 150, 333)


def specs_of(form: KVForm = KVForm.INT8, *, is_pair: bool = False) -> list[TensorSpec]:
    ring = KVRing("ring", 2, CAPACITY, WIDTH, torch.float32, "position", form)
    specs = [TensorSpec("position", (), torch.int64), *ring.specs()]
    return [spec.pair() for spec in specs] if is_pair else specs


def pooled(specs: list[TensorSpec]) -> list[TensorSpec]:
    return [spec.pooled() if spec.position is not None else spec for spec in specs]


def lived(state: State, seen: int, form: KVForm = KVForm.INT8, *, row: int = 1) -> State:
    """A row that has seen so many positions; all others, and what it has not written, hold garbage."""
    for name, tensor in state.tensors.items():
        tensor.fill_(0 if name == "position" else 77)
    if state.table is not None and state.pool is None:
        state.table.pages.copy_(state.table.pages.flip(0, 1))
    state.hold(np.array([row], np.int32), np.array([seen]))
    ring = KVRing("ring", 2, CAPACITY, WIDTH, torch.float32, "position", form)
    random, step = torch.Generator().manual_seed(seen), state.step([row])
    for first in range(0, seen, 10):
        positions = torch.arange(first, min(first + 10, seen))
        k, v = torch.randn(2, 1, 2, len(positions), WIDTH, generator=random)
        ring.write(step, (positions % CAPACITY)[None], k, v)
    state.tensors["position"][row] = seen
    return state


def check_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
        assert tensor.is_contiguous()


@pytest.mark.parametrize("form", KVForm)
@pytest.mark.parametrize("overcommit", [1.0, 1.5])
@pytest.mark.parametrize("seen", SEEN)
def test_a_snapshot_does_not_show_pages(form: KVForm, overcommit: float, seen: int) -> None:
    """It goes from a row in one piece to one in pages and back, and every read is the same."""
    specs = specs_of(form)
    plain = lived(State(specs, 3), seen, form)
    paged = lived(State(pooled(specs), 3, overcommit=overcommit), seen, form)
    assert (paged.pool is None) is (overcommit == 1)
    taken = plain.snapshot(1)
    check_same(taken, paged.snapshot(1))
    paged.check(taken)
    paged.reset([2])
    paged.restore(2, taken)
    check_same(taken, paged.snapshot(2))
    plain.restore(0, paged.snapshot(2))
    check_same(taken, plain.snapshot(0))
    ring = KVRing("ring", 2, CAPACITY, WIDTH, torch.float32, "position", form)
    filled = min(seen, CAPACITY)
    for want, got in zip(
        ring.read(plain.step([1]), Run(0, 1, 1), filled),
        ring.read(paged.step([2]), Run(0, 2, 1), filled),
        strict=True,
    ):
        assert torch.equal(want, got)


def test_a_reset_row_is_erased_and_others_stay() -> None:
    state = lived(State(pooled(specs_of()), 3), 100)
    kept = state.snapshot(1)
    state.reset([0, 2])
    step = state.step([0])
    assert all((step.ring(name, Run(0, 0, 1), CAPACITY) == 0).all() for name in kept if name != "position")
    check_same(kept, state.snapshot(1))


def test_rows_that_share_pages_take_them_as_they_grow() -> None:
    state = State(pooled(specs_of()), 4, overcommit=2.0)
    assert state.pool is not None
    assert state.pool.pages == 6
    assert state.bytes() == 4 * 8 + 6 * state.page_bytes
    assert 4 * state.promised_bytes() == state.bytes()
    rows = np.arange(4, dtype=np.int32)
    state.hold(rows, np.array([1, 65, 64, 1]))
    assert state.pool.free == 1
    state.hold(rows[:1], np.array([70]))
    with pytest.raises(StepError, match=r"rows \[2\] need 1 pages, and 0 are free"):
        state.hold(rows[2:3], np.array([65]))
    state.reset([1])
    state.hold(rows[2:3], np.array([65]))


@pytest.mark.parametrize("form", KVForm)
def test_the_rows_of_a_pair_share_its_pages(form: KVForm) -> None:
    specs = specs_of(form, is_pair=True)
    found = []
    for state in (State(specs, 3), State(pooled(specs), 3)):
        if state.table is not None:
            state.table.pages.copy_(state.table.pages.flip(0, 1))
        steps: PackedStep = state.step([2, 0]).pairs([spec.name for spec in specs])
        ring = KVRing("ring", 2, CAPACITY, WIDTH, torch.float32, "position", form)
        torch.manual_seed(1)
        for slot in (3, 70, 149):
            k, v = torch.randn(2, 4, 2, 1, WIDTH)
            ring.write(steps, torch.full((4, 1), slot), k, v)
        found.append([ring.read(steps, Run(0, row, 1), CAPACITY) for row in (0, 1, 4, 5)])
    for plain, paged in zip(*found, strict=True):
        for one, other in zip(plain, paged, strict=True):
            assert torch.equal(one[:, :, [3, 70, 149]], other[:, :, [3, 70, 149]])


@pytest.fixture(scope="module")
def duplex(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("pages") / "moshi"
    return load_checkpoint(str(make_checkpoint(folder, kind="moshi", dtype="float32", context=70)))


def made(checkpoint: Checkpoint, kv: str = "int8", **options: float) -> HostBackend:
    backend = make(checkpoint, slots=4, device="cpu", kv=kv, **options)  # type: ignore[arg-type]
    assert isinstance(backend, HostBackend)
    return backend


def talk(backend: HostBackend, rows: list[int], frames: int, *, is_new: bool = True) -> list[StepOutputs]:
    """Frames of some rows, the same for whoever has as many rows; sampled with one seed."""
    random, count = np.random.default_rng(frames), len(rows)
    return [
        backend.step(
            StepInputs(
                np.array(rows, np.int32),
                np.full(count, is_new and index == 0),
                random.normal(0, 0.1, (count, 1920)).astype(np.float32),
            )
        )
        for index in range(frames)
    ]


def check_same_replies(ours: list[StepOutputs], theirs: list[StepOutputs]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.pcm is not None
        assert other.pcm is not None
        assert one.text_tokens is not None
        assert other.text_tokens is not None
        assert np.array_equal(one.text_tokens, other.text_tokens)
        assert np.array_equal(one.pcm, other.pcm)


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_calls_that_share_pages_say_what_calls_of_their_own_say(duplex: Checkpoint, kv: str) -> None:
    """Past the wrap, and after a hand-over from one to the other in either direction."""
    plain, paged = made(duplex, kv), made(duplex, kv, overcommit=1.6)
    assert plain.page_count() is None
    assert paged.page_count() == PageCount(5, 5)
    assert paged.info.memory["state_per_row"] < plain.info.memory["state_per_row"]
    assert paged.info.memory["whole_row"] == plain.info.memory["state_per_row"]
    check_same_replies(talk(plain, [2, 0], 75), talk(paged, [1, 3], 75))
    assert paged.page_count() == PageCount(1, 5)
    paged.release(3)
    assert paged.page_count() == PageCount(3, 5)
    for source, target, row in ((plain, paged, 2), (paged, plain, 1)):
        moved = source.to_host(source.snapshot(row))
        target.restore(3, target.from_host(moved))
        check_same_replies(talk(source, [row], 4, is_new=False), talk(target, [3], 4, is_new=False))


def test_the_youngest_row_is_named_before_a_tick_and_the_others_go_on(duplex: Checkpoint) -> None:
    backend = made(duplex, overcommit=2.0)
    talk(backend, [0], 64)
    talk(backend, [3], 20)
    talk(backend, [1, 2], 3)
    rows, reset = np.array([0, 1, 3], np.int32), np.zeros(3, np.bool_)
    assert backend.page_count() == PageCount(0, 4)
    assert backend.make_room(rows, reset) == [2]
    talk(backend, [0, 1, 3], 1, is_new=False)
    assert backend.make_room(rows, reset) == []


def prompt_of(checkpoint: Checkpoint, count: int) -> Prompt:
    lm, random = checkpoint.spec.lm, np.random.default_rng(count)
    assert lm is not None
    text = random.integers(0, lm.text_card, (count, 1))
    return Prompt(np.concatenate([text, random.integers(0, lm.card, (count, lm.n_q))], 1).astype(np.int32))


def primed(backend: HostBackend, row: int, prompt: Prompt) -> dict[str, Tensor]:
    while not backend.prime(row, prompt).is_done:
        pass
    return {name: torch.as_tensor(tensor) for name, tensor in backend.snapshot(row).tensors.items()}


@pytest.mark.parametrize("is_evicted", [False, True])
def test_a_prompt_that_was_half_read_begins_anew_where_its_pages_were_taken(
    duplex: Checkpoint, is_evicted: bool
) -> None:
    prompt = prompt_of(duplex, 66)
    backend = made(duplex, overcommit=2.0)
    first = backend.prime(0, prompt)
    assert not first.is_done
    if is_evicted:  # younger by its prompt than the others by their calls
        talk(backend, [1, 2, 3], first.done + 1)
        talk(backend, [3], 63 - first.done, is_new=False)
        assert backend.make_room(np.array([3], np.int32), np.array([False])) == [0]
    else:
        backend.release(0)
    talk(backend, [1, 2, 3], 3)
    backend.release(1)
    backend.release(2)
    assert backend.prime(0, prompt).done == first.done
    check_same(primed(made(duplex), 0, prompt), primed(backend, 0, prompt))


def test_a_call_that_reads_its_prompt_is_as_old_as_what_it_has_read(duplex: Checkpoint) -> None:
    backend = made(duplex, overcommit=2.0)
    assert backend.prime(0, prompt_of(duplex, 66)).done > 3
    talk(backend, [3], 64)
    talk(backend, [1, 2], 3)
    assert backend.make_room(np.array([3], np.int32), np.array([False])) == [2]


def test_a_prompt_without_pages_ends_its_call_and_no_device(duplex: Checkpoint) -> None:
    backend = made(duplex, overcommit=2.0)
    talk(backend, [1, 2, 3], 3)
    talk(backend, [3], 62, is_new=False)
    for _ in range(FAILURES_IN_A_ROW):
        with pytest.raises(StepError, match=r"rows \[0\] need 1 pages, and 0 are free") as raised:
            backend.prime(0, prompt_of(duplex, 66))
        assert raised.value.rows == (0,)


def test_a_codec_has_no_pages_to_share(tmp_path: Path) -> None:
    codec = load_checkpoint(str(make_checkpoint(tmp_path / "codec", kind="codec", dtype="float32")))
    with pytest.raises(ConfigError, match=r"overcommit is 1\.5, but a codec model has no keys and values"):
        make(codec, slots=1, device="cpu", overcommit=1.5)


def test_rows_of_a_synthesiser_do_not_share_pages(tmp_path: Path) -> None:
    tts = load_checkpoint(str(make_checkpoint(tmp_path / "tts", kind="tts", dtype="float32")))
    with pytest.raises(ConfigError, match=r"overcommit is 1\.5, but rows of a tts model are not shared"):
        make(tts, slots=2, device="cpu", overcommit=1.5)


@pytest.mark.parametrize("overcommit", [0.5, 9.0])
def test_an_overcommit_out_of_range_is_refused(duplex: Checkpoint, overcommit: float) -> None:
    with pytest.raises(ConfigError, match=f"overcommit is {overcommit:g}; it can be 1 to 8"):
        made(duplex, overcommit=overcommit)
