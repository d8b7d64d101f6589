"""A row's state as a value: saved between ticks, restored in another row, refused by another model."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from antiphon.backends.base import HostArray
from antiphon.engine.call_state import SavedState, StateIdentity, pack, unpack
from antiphon.engine.values import SavedRow
from antiphon.errors import SessionError, UnsupportedError
from antiphon.ipc import messages
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionState
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from tests.engine.bench import Bench, heard, pcm_of
from tests.engine.fakes import FakeBackend, fake_spec

IDENTITY = StateIdentity("a1", "fake", "float32", "none")


def save(bench: Bench, session: Session) -> Future[SavedRow]:
    """The state of a session's row."""
    return bench.engine.save(bench.calls.engine_session(session))


def restored(bench: Bench, state: Mapping[str, HostArray]) -> Session:
    """A session whose row continues from this state."""
    session = bench.submit()
    prime = messages.Prime(session.id, 0, SavedState(state))  # type: ignore[arg-type]
    bench.engine.sessions.pass_on(bench.calls.engine_session(session), prime)
    return session


def test_a_saved_row_goes_on_in_another_session_and_its_own_goes_on_too() -> None:
    bench = Bench(FakeBackend(fake_spec(PipelineKind.CODEC)))
    first = bench.submit()
    bench.push(first, 1, 2)
    bench.ticks()
    saved = save(bench, first)
    bench.push(first, 3)
    assert bench.tick(), "the state is being saved"
    assert not bench.backend.steps[2:], "the row takes no step meanwhile"
    bench.ticks()
    arrays = saved.result(0).arrays
    assert heard(first.take()) == [1, 2, 3]
    data = pack(arrays, IDENTITY)
    second = restored(bench, unpack(data, IDENTITY))
    bench.ticks()
    assert second.state is SessionState.ACTIVE
    bench.push(second, 40)
    bench.ticks()
    (reply,) = second.take()
    assert pcm_of(reply)[:3].tolist() == [40, 3, 1 + 2 + 40]


def test_a_session_without_a_row_has_no_state() -> None:
    bench = Bench(FakeBackend(slots=1))
    bench.submit()
    waiting = bench.submit(wait_s=10)
    saved = save(bench, waiting)
    bench.ticks()
    with pytest.raises(SessionError, match="has no row whose state could be saved"):
        saved.result(0)


def test_a_state_keeps_every_bit_and_shape() -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array(7),
        "c": np.array([1, 65535], np.uint16),
    }
    got = unpack(pack(arrays, IDENTITY), IDENTITY)
    assert got.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("name", ["model", "backend", "dtype", "quantization"])
def test_a_state_of_another_kind_is_refused_by_name(name: str) -> None:
    data = pack({"a": np.zeros(1)}, IDENTITY)
    changed: dict[str, Any] = {name: "other"}
    other = replace(IDENTITY, **changed)
    with pytest.raises(UnsupportedError, match=f"the row's state is of {name} .*, this process has other"):
        unpack(data, other)


@pytest.mark.parametrize("cut", [0, 4, 30, -1])
def test_damaged_bytes_are_refused(cut: int) -> None:
    data = pack({"a": np.zeros(100)}, IDENTITY)
    with pytest.raises(UnsupportedError, match="bytes are no state of a row"):
        unpack(data[:cut], IDENTITY)


def test_a_save_that_its_owner_gave_up_harms_nobody() -> None:
    bench = Bench()
    session = bench.submit()
    bench.push(session, 1)
    bench.ticks()
    assert save(bench, session).cancel()
    bench.push(session, 2)
    bench.ticks()
    assert bench.losses == []
    assert heard(session.take()) == [1, 2]
    saved = save(bench, session)
    bench.tick()
    assert not saved.cancel(), "it is under way"


def test_parameters_given_while_a_state_is_saved_reach_the_row() -> None:
    bench = Bench()
    session = bench.submit(seed=1)
    bench.push(session, 1)
    bench.ticks()
    save(bench, session)
    session.set_parameters(SamplingParameters(text_seed=2))
    bench.push(session, 2)
    bench.ticks()
    assert [pcm_of(reply)[3] for reply in session.take()] == [1, 2]


def test_silence_heard_aside_is_no_part_of_a_saved_state_and_is_undone_after_it() -> None:
    bench = Bench(FakeBackend(fake_spec(PipelineKind.STT)))
    session = bench.submit()
    bench.push(session, 5)
    session.feed_padding(2, bench.clock())
    bench.ticks()
    saved = save(bench, session)
    bench.ticks()
    assert saved.result(0).arrays["row"].tolist() == [1, 1, 0, 5], "life, frames, prompt, sum"
    session.take()
    bench.push(session, 6)
    bench.ticks()
    assert [reply.text_token for reply in session.take()] == [2]


def test_a_row_that_holds_nothing_of_its_session_is_not_saved() -> None:
    bench = Bench(FakeBackend(slots=1))
    other = bench.submit()
    bench.push(other, 99)
    bench.ticks()
    other.close()
    session = bench.submit()
    bench.ticks()
    saved = save(bench, session)
    bench.ticks()
    with pytest.raises(SessionError, match="no state of this session yet; save it after its first frame"):
        saved.result(0)


def test_a_row_is_not_saved_while_it_reads_its_prompt() -> None:
    bench = Bench(FakeBackend(fake_spec(PipelineKind.DUPLEX)))
    session = bench.submit(prompt=Prompt(np.ones((4, 2), np.int32)))
    bench.tick()
    saved = save(bench, session)
    bench.ticks()
    with pytest.raises(SessionError, match="still reads its prompt; save its row's state after that"):
        saved.result(0)


def test_a_row_stands_still_until_all_its_saves_are_out() -> None:
    bench = Bench()
    session = bench.submit()
    bench.push(session, 1)
    bench.ticks()
    saves = [save(bench, session) for _ in range(2)]
    bench.push(session, 2)
    bench.ticks()
    assert [save.result(0).arrays["row"].tolist() for save in saves] == 2 * [[1, 1, 0, 1]]
    assert heard(session.take()) == [1, 2]


def test_a_row_whose_call_is_detached_while_it_is_saved_waits_for_its_connection() -> None:
    bench = Bench()
    session = bench.submit()
    session.arm(bytes(32), "")
    bench.push(session, 1)
    bench.ticks()
    saved = save(bench, session)
    bench.tick()  # it has begun
    bench.push(session, 2)
    session.detach()
    bench.ticks()
    assert saved.done()
    assert heard(session.take()) == [1]


def test_a_save_ends_with_the_engine() -> None:
    bench = Bench()
    session = bench.submit()
    bench.push(session, 1)
    bench.ticks()
    guest = bench.calls.engine_session(session)
    saved = bench.engine.save(guest)
    bench.tick()  # it has begun
    bench.push(other := bench.submit(), 2)
    bench.backend.failures.append(RuntimeError("the device is gone"))
    bench.tick()
    del other
    for late in (saved, bench.engine.save(guest)):
        with pytest.raises(SessionError, match="the engine ended before the row's state was saved"):
            late.result(0)


def test_a_save_of_a_session_that_has_ended_gives_no_state_of_the_next_one() -> None:
    bench = Bench(FakeBackend(slots=1))
    first = bench.submit()
    bench.push(first, 1)
    bench.ticks()
    saves = [save(bench, first) for _ in range(2)]
    bench.tick()  # the first of them has begun
    first.close()
    bench.tick()
    second = bench.submit()
    bench.push(second, 2)
    bench.ticks()
    for saved in saves:
        with pytest.raises(SessionError, match="has no row whose state could be saved"):
            saved.result(0)
    assert heard(second.take()) == [2]
