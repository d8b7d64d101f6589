"""Faults at the process boundary affect only their call or front end."""

from __future__ import annotations

import asyncio
import errno
import gc
import math
import os
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.backends.base import TextEntry
from antiphon.engine.front_ends import FrontEndConnection
from antiphon.errors import ProtocolError, ServerFullError, UnsupportedError
from antiphon.ipc import messages
from antiphon.ipc.engine_client import EngineClient, EnginePort, connect
from antiphon.ipc.message_socket import IS_FILE, IS_INLINE, close_all
from antiphon.ipc.values import ResumeClaim, SessionState
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import RULES, SamplingParameters
from antiphon.protocol.chat import parameter_ranges
from tests.engine.fakes import MODEL
from tests.ipc.engine_process import make_engine
from tests.ipc.places import PATIENCE_S, PLACES, Place, open_call
from tests.ipc.places import until as until_seen
from tests.ipc.server_thread import ServerThread

NAN = math.nan


class Served:
    """An engine with two pools in this process, and what a front end of pool 0 may say, byte by byte."""

    def __init__(self, kind: str) -> None:
        self.engine = make_engine({"kind": kind, "slots": 4}, pools=2)
        self.dropped: list[int] = []
        self.fleet = ServerThread({MODEL: self.engine}, on_dropped=self.dropped.append)

    def raw(self, pool: int = 0) -> RawFrontEnd:
        """A front end of our own, which has been greeted."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.fleet.add(pool, theirs)
        front_end = RawFrontEnd(ours)
        assert isinstance(front_end.answer(), messages.Hello)
        return front_end

    async def port(self, pool: int) -> EnginePort:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.fleet.add(pool, theirs)
        return (await connect(ours))[MODEL]

    def stop(self) -> None:
        assert self.engine.stop(PATIENCE_S)
        self.fleet.stop()


class RawFrontEnd:
    """A front end that sends what it likes."""

    def __init__(self, control: socket.socket) -> None:
        control.setblocking(False)  # a socket with a timeout takes a quarter of what fits
        self._control = control

    def send(self, request: messages.Request) -> None:
        self._control.send(IS_INLINE + messages.REQUESTS.encode(0, request))

    def send_without_its_file(self, request: messages.Request) -> None:
        """As a long message arrives where no open file is left."""
        self._control.send(IS_FILE + messages.REQUESTS.head(request))

    def answer(self) -> messages.Notice:
        """The next message that is not about health.

        Raises:
            EOFError: the engine's process has closed the socket.
        """
        while True:
            assert select.select([self._control], [], [], PATIENCE_S)[0], "there is no answer"
            data, descriptors, _, _ = socket.recv_fds(self._control, 1 << 20, 64)
            close_all(descriptors)
            if not data:
                raise EOFError
            _, notice = messages.NOTICES.decode(data[1:])
            if not isinstance(notice, messages.HealthNow):
                return notice

    def close(self) -> None:
        self._control.close()


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    found = Served(getattr(request, "param", "codec"))
    yield found
    found.stop()


def opening(call: str, **changes: Any) -> messages.Open:
    values = {"model": 0, "parameters": SamplingParameters(), "wait_s": 0.0}
    return messages.Open(call=call, **{**values, **changes})


@pytest.mark.parametrize("place", PLACES)
async def test_a_notify_that_raises_takes_no_wake_up_from_the_others(place: str) -> None:
    async with PLACES[place]({"slots": 3}) as here:

        def fail() -> None:
            raise RuntimeError("this owner is broken")

        broken = [await here.port.submit(SamplingParameters(), wait_s=0.0, notify=fail) for _ in range(2)]
        call = await open_call(here)
        for session in (*broken, call.session):
            session.close()
        async with asyncio.timeout(PATIENCE_S):
            await call.news.wait()


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
async def test_a_prompt_without_an_open_file_is_refused_and_leaves_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = await served.port(0)
    lm = port.info.spec.lm
    short = np.zeros((3, 1 + lm.n_q if lm else 1), np.int32)
    prompt = Prompt(short, embedded=np.zeros((50_000, 1), np.float32))
    opened = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", no_open_file)
        with pytest.raises(ServerFullError, match=r"could not be passed on: Too many open files; try again"):
            await open_call(Place(port, lambda: None), prompt=prompt)
    assert open_files() == opened
    first = await open_call(Place(port, lambda: None), prompt=prompt)
    await first.until(lambda session: session.state is SessionState.ACTIVE)
    first.session.close()
    port.client.close()


async def test_a_question_that_cannot_be_passed_on_leaves_no_answer_that_fails_later() -> None:
    loop = asyncio.get_running_loop()
    unheard: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unheard.append(context))

    def post(*_: Any) -> None:
        no_open_file()

    client = EngineClient(post, loop)
    with pytest.raises(ServerFullError, match="a Check message could not be passed on: Too many open files"):
        await client.ask(lambda number: messages.Check(0, number, 0.0))
    client.close()
    gc.collect()
    assert not unheard


@pytest.mark.parametrize("served", ["duplex"], indirect=True)
def test_a_long_message_for_which_the_engine_has_no_open_file_ends_its_call_alone(served: Served) -> None:
    front_end = served.raw()
    front_end.send(opening("good"))
    assert isinstance(front_end.answer(), messages.Admitted)
    front_end.send_without_its_file(opening("bad"))
    refused = front_end.answer()
    assert isinstance(refused, messages.Refused)
    assert (refused.call, str(refused.error)) == ("bad", "no file descriptor was free for a long message")
    front_end.send_without_its_file(messages.Prime("good", 1, Prompt(np.zeros((2, 2), np.int32))))
    assert isinstance(front_end.answer(), messages.Ended)
    assert served.dropped == []
    front_end.close()


async def test_a_front_end_that_cannot_be_served_is_dropped_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt, stays = await served.port(0), await served.port(1)
    call = await open_call(Place(stays, lambda: None))

    def fail(*_: Any) -> None:
        raise RuntimeError("a fault of our own")

    with monkeypatch.context() as patch:
        patch.setattr(served.engine, "note_host", fail)
        spoilt.note_lag(0.0)
        await until_seen(lambda: served.dropped == [0])
    call.session.push(np.zeros(stays.info.spec.frame_samples, np.float32), time.monotonic())
    await call.until(lambda session: session.reply_frames == 1)
    assert "a front end could not be served" in caplog.messages
    call.session.close()
    for port in (spoilt, stays):
        port.client.close()


def test_what_a_front_end_that_died_had_noted_is_known(served: Served) -> None:
    """Its process may be reaped before the fleet has read what it said last."""
    dying, stays = served.raw(0), served.raw(1)
    dying.send(opening("first"))
    assert isinstance(dying.answer(), messages.Admitted)
    with served.fleet.paused():
        dying.send(messages.Arm("first", b"1" * 32, "a key"))
        for seq in range(100):
            dying.send(messages.Noted("first", ((seq, b"a word"),), seq + 1))
        dying.close()
        served.fleet.loop.call_soon_threadsafe(served.fleet.server.take_back, 0)
    claim = ResumeClaim(b"1" * 32, b"2" * 32, "a key", 98, 5, 5)
    stays.send(messages.Resume("second", 0, claim))
    resumed = stays.answer()
    assert isinstance(resumed, messages.Resumed)
    assert (resumed.resumption.notes, resumed.resumption.next_seq) == (((99, b"a word"),), 100)
    stays.close()


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
    served.raw(0).close()


def spoilt_parameters() -> Iterator[SamplingParameters]:
    for name, rule in RULES.items():
        assert rule.low is not None
        assert rule.high is not None
        values: tuple[Any, ...] = (rule.low - 1, min(10 * rule.high + 1, 2**64 - 1), NAN, "1", True, [])
        for value in values:
            yield replace(SamplingParameters(), **{name: value})


@pytest.mark.parametrize("served", ["tts"], indirect=True)
def test_what_a_call_is_given_out_of_range_ends_it_alone(served: Served) -> None:
    post = served.raw()
    post.send(opening("good"))
    assert isinstance(post.answer(), messages.Admitted)
    for number, parameters in enumerate(spoilt_parameters()):
        post.send(opening(f"bad-{number}", parameters=parameters))
        message = post.answer()
        assert isinstance(message, messages.Refused), parameters
        assert isinstance(message.error, UnsupportedError)
    for wait_s in (NAN, -1.0, math.inf, "1"):
        post.send(opening("waits", wait_s=wait_s))
        assert isinstance(post.answer(), messages.Refused)
    word = TextEntry((1,), "word")
    tail = np.zeros(0, np.float32)
    given: list[Any] = [
        messages.SetParameters("spoilt", 1, SamplingParameters(text_topk=-1)),
        messages.PushText("spoilt", (replace(word, tokens=(1, 2**40)),), 0.0),
        messages.PushText("spoilt", (replace(word, tokens=(-1,)),), 0.0),
        messages.PushText("spoilt", (replace(word, padding_frames=10**9),), 0.0),
        messages.PushText("spoilt", (replace(word, tokens=(1,) * 300),), 0.0),
        messages.PushText("spoilt", (word,) * 300, 0.0),
        messages.PushText("spoilt", (word,), "c"),  # type: ignore[arg-type]
        messages.PushText("spoilt", (word,), NAN),
        messages.FeedPadding("spoilt", 0, 3, 1025, tail, 0.0),
        messages.FeedPadding("spoilt", 0, 3, 3, np.zeros(10_000, np.float32), 0.0),
        messages.FeedPadding("spoilt", -1, 3, 3, tail, 0.0),
        messages.Prime("spoilt", 1, Prompt(np.zeros(3, np.int32))),
        messages.Prime("spoilt", 1, Prompt(np.zeros((3, 2), np.float32))),
        messages.Prime(
            "spoilt", 1, Prompt(np.zeros((3, 2), np.int32), voice=np.full((1, 8), NAN, np.float32))
        ),
    ]
    for message in given:
        post.send(opening("spoilt"))
        assert isinstance(post.answer(), messages.Admitted)
        post.send(message)
        assert isinstance(post.answer(), messages.Ended), message
        post.send(messages.Close("spoilt"))
    post.send(messages.PushText("good", (word,), 0.0))
    post.send(messages.Check(0, 1, 0.0))
    assert post.answer() == messages.Checked(1, None)
    assert (served.dropped, served.engine.health().active) == ([], 1)
    post.close()


def sent(latency_s: float | None = None, **changes: Any) -> messages.Sent:
    values = {"model": 0, "sent_s": 1.0, "late": 0, "pressing": 0, "refused": 0, **changes}
    latencies = np.array([] if latency_s is None else [latency_s], np.float32)
    return messages.Sent(latency_s=latencies, first_audio_s=np.zeros(0, np.float32), **values)


@pytest.mark.parametrize(
    "message",
    [
        sent(NAN),
        sent(-1.0),
        sent(1.0, late=7),
        sent(refused=-5),
        sent(sent_s=NAN),
        sent(model=-1),
        sent(model=1),
        messages.Check(-1, 1, 0.0),
        messages.Lag(0, -1.0),
        opening(""),
        opening("a" * 65),
    ],
)
async def test_numbers_that_no_call_is_to_blame_for_drop_the_front_end(
    served: Served, message: messages.Request
) -> None:
    post = served.raw()
    post.send(message)
    with pytest.raises(EOFError):
        post.answer()
    await until_seen(lambda: served.dropped == [0])
    (dropped,) = served.engine.metrics.dropped_in.collect()
    assert {sample.value for sample in dropped.samples if sample.name.endswith("_total")} == {0}
    post.close()


def test_a_front_end_has_a_bounded_number_of_calls(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.engine.front_ends.MAX_CALLS", 3)
    front_end = FrontEndConnection([served.engine], pool=0, wake=lambda: None)
    for number in range(3):
        front_end.handle(opening(str(number)), [])
    with pytest.raises(ProtocolError, match="opened call 3 twice, or more than 3"):
        front_end.handle(opening("3"), [])
    for engine, leases in front_end.give_up("the test is over"):
        engine.sessions.leases.let_go(leases)


def test_what_callers_may_ask_for_is_what_a_sampler_can_be_given() -> None:
    ranges = parameter_ranges()
    assert set(ranges) == set(RULES)
    for name, rule in RULES.items():
        for bound in ("low", "high"):
            assert rule.fault(ranges[name][bound]) is None, name
