"""Faults at the seam stay with the call, or the front end, that they belong to."""

from __future__ import annotations

import asyncio
import errno
import gc
import math
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.engine.fleet import Fleet
from antiphon.engine.front_end import FrontEndRequests
from antiphon.engine.requests import MAX_FLUSH_FRAMES
from antiphon.errors import ProtocolError, ServerFullError
from antiphon.ipc import messages
from antiphon.ipc.local import Doorbell
from antiphon.ipc.post import Post
from antiphon.ipc.remote import Desk, connect
from antiphon.ipc.remote_engine import RemoteEngine
from antiphon.ipc.values import SessionState
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import RULES, SamplingParameters
from antiphon.protocol.chat import parameter_ranges
from tests.engine.fakes import MODEL
from tests.ipc.engine_process import make_engine
from tests.ipc.places import PATIENCE_S, PLACES, Place, open_call
from tests.ipc.places import until as until_seen

NAN = math.nan


class Served:
    """An engine with two pools in this process, and what a front end of pool 0 may say, byte by byte."""

    def __init__(self, kind: str) -> None:
        self.engine = make_engine({"kind": kind, "slots": 4}, pools=2)
        self.dropped: list[int] = []
        self.fleet = Fleet({MODEL: self.engine}, on_dropped=self.dropped.append)
        self.fleet.start()

    def raw(self, pool: int = 0) -> Post:
        """A front end of our own, which has been greeted."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.fleet.add(pool, theirs)
        post = Post(ours, time.monotonic)
        message, descriptors = answer(post)
        assert isinstance(message, messages.Hello)
        for descriptor in descriptors:
            os.close(descriptor)
        return post

    async def port(self, pool: int) -> RemoteEngine:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.fleet.add(pool, theirs)
        return (await connect(ours))[MODEL]

    def stop(self) -> None:
        assert self.engine.stop(PATIENCE_S)
        self.fleet.stop()


def answer(post: Post) -> tuple[messages.Message, list[int]]:
    """The next message that is not about health."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        received = post.receive()
        if received is None:
            time.sleep(0.005)
        elif not isinstance(received[0], messages.HealthNow):
            return received
    raise AssertionError("there is no answer")


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    found = Served(getattr(request, "param", "codec"))
    yield found
    found.stop()


def opening(call: str, **changes: Any) -> messages.Open:
    values = {"model": 0, "parameters": asdict(SamplingParameters()), "wait_s": 0.0, "prompt": None}
    return messages.Open(call=call, **{**values, **changes})


async def test_a_notify_that_raises_takes_no_wake_up_from_the_others() -> None:
    bell, woken = Doorbell(asyncio.get_running_loop()), []

    def fail() -> None:
        raise RuntimeError("this owner is broken")

    for notify in (fail, lambda: woken.append("second"), lambda: woken.append("third")):
        bell.ring(notify, lambda error: woken.append(str(error)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert woken == ["this owner is broken", "second", "third"]


@pytest.mark.parametrize("place", PLACES)
async def test_a_notify_that_raises_ends_its_session(place: str, caplog: pytest.LogCaptureFixture) -> None:
    async with PLACES[place]({"slots": 2}) as here:

        def fail() -> None:
            raise RuntimeError("this owner is broken")

        session = await here.port.submit(SamplingParameters(), wait_s=0.0, notify=fail)
        call = await open_call(here)
        for each in (session, call.session):
            each.push(np.zeros(here.port.info.spec.frame_samples, np.float32), time.monotonic())
        await call.until(lambda it: it.reply_frames == 1)
        await until_seen(lambda: session.state is SessionState.CLOSED)
        assert "owner of a change failed: RuntimeError('this owner is broken')" in str(session.error)
        assert caplog.messages.count("notify failed") == 1
        call.session.close()


def open_files() -> int:
    """Those of earlier tests left out: what stands in a circle is closed whenever it is collected."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def no_open_file(*_: Any) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("served", ["duplex"], indirect=True)
@pytest.mark.parametrize("call", ["memfd_create", "dup"])
async def test_a_prompt_without_an_open_file_is_refused_and_leaves_nothing(
    served: Served, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = await served.port(0)
    prompt = Prompt(np.zeros((3, 1 + port.info.spec.lm.n_q if port.info.spec.lm else 1), np.int32))
    opened = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, no_open_file)
        with pytest.raises(ServerFullError, match=r"could not be passed on: Too many open files; try again"):
            await open_call(Place(port, lambda: None), prompt=prompt)
    desk = port._desk
    assert isinstance(desk, Desk)
    assert (desk._sessions, desk._answers) == ({}, {})
    assert open_files() == opened
    first = await open_call(Place(port, lambda: None), prompt=prompt)
    await first.until(lambda session: session.state is SessionState.ACTIVE)
    first.session.close()
    port._desk.close()


async def test_a_front_end_that_cannot_be_served_is_dropped_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt, stays = await served.port(0), await served.port(1)
    call = await open_call(Place(stays, lambda: None))
    flush, faulty = Post.flush, served.fleet._front_ends[0].post

    def fail(post: Post) -> None:
        if post is faulty:
            raise RuntimeError("a fault of our own")
        flush(post)

    with monkeypatch.context() as patch:
        patch.setattr(Post, "flush", fail)
        await until_seen(lambda: served.dropped == [0])
    call.session.push(np.zeros(stays.info.spec.frame_samples, np.float32), time.monotonic())
    await call.until(lambda session: session.reply_frames == 1)
    assert "a front end could not be served" in caplog.messages
    assert served.fleet._thread.is_alive()
    call.session.close()
    for port in (spoilt, stays):
        port._desk.close()


def test_what_a_front_end_that_died_had_noted_is_known(served: Served) -> None:
    """Its process may be reaped before the fleet has read what it said last."""
    dying, stays = served.raw(0), served.raw(1)
    dying.send(opening("first"))
    assert isinstance(answer(dying)[0], messages.Admitted)
    with served.fleet._lock:  # its thread has no turn
        dying.send(messages.Arm("first", b"1" * 32, "a key"))
        for seq in range(200):
            dying.send(messages.Noted("first", ((seq, b"a word"),), seq + 1))
        dying.close()
        served.fleet.take_back(0)
    stays.send(messages.Resume(0, "second", (b"1" * 32, b"2" * 32, "a key", 198, 5, 5)))
    resumed, _ = answer(stays)
    assert isinstance(resumed, messages.Resumed)
    assert ([tuple(note) for note in resumed.notes], resumed.next_seq) == ([(199, b"a word")], 200)
    stays.close()


async def test_the_fleets_thread_outlives_a_turn_that_fails(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(served.fleet._selector, "select", no_open_file)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        served.fleet.add(0, theirs)
        await until_seen(lambda: "a turn of the fleet failed" in caplog.messages)
    port = (await connect(ours))[MODEL]
    call = await open_call(Place(port, lambda: None))
    call.session.close()
    port._desk.close()


def test_a_front_end_that_cannot_be_greeted_is_dropped(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with monkeypatch.context() as patch:
        patch.setattr(os, "eventfd", no_open_file)
        served.fleet.add(0, theirs)
    assert served.dropped == [0]
    assert ours.recv(1) == b""
    ours.close()
    served.fleet.take_back(0)
    post = served.raw(0)
    post.close()


def spoilt_parameters() -> Iterator[dict[str, Any]]:
    for name, rule in RULES.items():
        assert rule.low is not None
        assert rule.high is not None
        values: tuple[Any, ...] = (rule.low - 1, min(10 * rule.high + 1, 2**64 - 1), NAN, "1", True, [])
        for value in values:
            yield {**asdict(SamplingParameters()), name: value}


@pytest.mark.parametrize("served", ["tts"], indirect=True)
def test_what_a_call_is_given_out_of_range_ends_it_alone(served: Served) -> None:
    post = served.raw()
    post.send(opening("good"))
    assert isinstance(answer(post)[0], messages.Admitted)
    for number, parameters in enumerate(spoilt_parameters()):
        post.send(opening(f"bad-{number}", parameters=parameters))
        message, _ = answer(post)
        assert isinstance(message, messages.Refused), parameters
        assert message.error[0] == "UnsupportedError"
    for wait_s in (NAN, -1.0, math.inf, "1"):
        post.send(opening("waits", wait_s=wait_s))
        assert isinstance(answer(post)[0], messages.Refused)
    given: list[Any] = [
        messages.SetParameters("spoilt", {**asdict(SamplingParameters()), "text_topk": -1}),
        messages.Words("spoilt", [((1, 2**40), "word", 0, False)], 0.0),
        messages.Words("spoilt", [((-1,), "word", 0, False)], 0.0),
        messages.Words("spoilt", [((1,), "word", 10**9, False)], 0.0),
        messages.Words("spoilt", [((1,) * 300, "word", 0, False)], 0.0),
        messages.Words("spoilt", [((), "", 1, False)] * 300, 0.0),
        messages.Words("spoilt", [((1,), "word", 0, False)], "c"),  # type: ignore[arg-type]
        messages.Words("spoilt", [((1,), "word", 0, False)], NAN),
        messages.HearPadding("spoilt", 0, 3, MAX_FLUSH_FRAMES + 1, b"", 0.0),
        messages.HearPadding("spoilt", 0, 3, 3, bytes(4 * 10_000), 0.0),
        messages.HearPadding("spoilt", -1, 3, 3, b"", 0.0),
    ]
    for message in given:
        post.send(opening("spoilt"))
        assert isinstance(answer(post)[0], messages.Admitted)
        post.send(message)
        ended, _ = answer(post)
        assert isinstance(ended, messages.Ended), message
        post.send(messages.Close("spoilt"))
    post.send(messages.Words("good", [((1,), "word", 0, False)], 0.0))
    post.send(messages.Check(0, 1, 0.0))
    assert answer(post)[0] == messages.Checked(1, None)
    assert (served.dropped, served.fleet.calls()) == ([], {0: 1})
    post.close()


@pytest.mark.parametrize(
    "message",
    [
        messages.Sent(0, 1.0, np.array([NAN], np.float32).tobytes(), 0, 0, b"", 0),
        messages.Sent(0, 1.0, np.array([-1], np.float32).tobytes(), 0, 0, b"", 0),
        messages.Sent(0, 1.0, np.array([1], np.float32).tobytes(), 7, 0, b"", 0),
        messages.Sent(0, 1.0, b"", 0, 0, b"", -5),
        messages.Sent(0, NAN, b"", 0, 0, b"", 0),
        messages.Sent(-1, 1.0, b"", 0, 0, b"", 0),
        messages.Check(-1, 1, 0.0),
        opening(""),
        opening("a" * 65),
    ],
)
async def test_numbers_that_no_call_is_to_blame_for_drop_the_front_end(
    served: Served, message: messages.Message
) -> None:
    post = served.raw()
    post.send(message)
    with pytest.raises(EOFError):
        answer(post)
    await until_seen(lambda: served.dropped == [0])
    assert served.engine.metrics.dropped_in._value.get() == 0
    post.close()


def test_a_front_end_has_a_bounded_number_of_calls(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.engine.front_end.MAX_CALLS", 3)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    front_end = FrontEndRequests(0, Post(theirs, time.monotonic), served.fleet._engines)
    for number in range(3):
        front_end._open(opening(str(number)), [])
    with pytest.raises(ProtocolError, match="opened call 3 twice, or more than 3"):
        front_end._open(opening("3"), [])
    for pools, leases in front_end.give_up("the test is over").items():
        pools.let_go(leases)


def test_what_callers_may_ask_for_is_what_a_sampler_can_be_given() -> None:
    ranges = parameter_ranges()
    assert set(ranges) == set(RULES)
    for name, rule in RULES.items():
        for bound in ("low", "high"):
            assert rule.fault(ranges[name][bound]) is None, name


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (["<f8", [1, 3]], "not <i4 of 2 axes"),
        (["<i4", [3]], "not <i4 of 2 axes"),
        (["<i4", [-1, 3]], "not <i4 of 2 axes"),
        (["|O", [1, 3]], "not <i4 of 2 axes"),
        (None, "arrays are missing"),
    ],
)
def test_a_prompt_of_another_form_is_refused(part: Any, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        messages.unpack_prompt([part, None, None, None, None], bytes(24))


def test_a_prompt_holds_numbers() -> None:
    frames, voice = np.zeros((2, 3), np.int32), np.array([[NAN]], np.float32)
    with pytest.raises(ProtocolError, match="not all of it are numbers"):
        messages.unpack_prompt(*messages.pack_prompt(Prompt(frames, voice)))
