"""One session with a server that echoes, refuses, queues, drops, misreports or dies."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any

import aiohttp
import numpy as np
import pytest

from antiphon.protocol import moshi
from antiphon.protocol.chat import AudioFormat
from antiphon_client.clip import EncodedClip, encode_clip, fit_clip
from antiphon_client.pacing import Pacer
from antiphon_client.record import SessionOutcome
from antiphon_client.report import SessionReport, report_session
from antiphon_client.session import ProbeSession, SessionPlan, SessionResult
from tests.clients.fake_server import Behaviour, FakeServer, fake_server

FRAMES = 5


@pytest.fixture(autouse=True)
def nothing_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause of this machine all messages still leave; test_pacing is about those dropped instead."""
    monkeypatch.setattr("antiphon_client.session.Pacer", functools.partial(Pacer, stale_s=60.0))


def make_clip(audio_format: AudioFormat, frames: int = FRAMES) -> EncodedClip:
    noise = np.random.default_rng(1).normal(0, 0.1, frames * 1920).astype(np.float32)
    return encode_clip(fit_clip(noise, None), audio_format)


async def hold(
    server: FakeServer,
    audio_format: AudioFormat = AudioFormat.OPUS,
    *,
    frames: int = FRAMES,
    is_extended: bool = True,
    wait_s: float = 0.0,
    ready_timeout_s: float = 30.0,
    delay_frames: int = 0,
) -> tuple[SessionReport, SessionResult]:
    query = {"ext": "1", "format": audio_format.value, "wait": f"{wait_s:g}"} if is_extended else {}
    plan = SessionPlan(
        session=0,
        url=server.address.chat(query),
        connect_after_s=0.0,
        phase_s=0.01,
        is_extended=is_extended,
        delay_frames=delay_frames,
        ready_timeout_s=ready_timeout_s,
        grace_s=30.0,  # over as soon as the last frame is answered
        keeps_audio=True,
    )
    session = ProbeSession(
        plan, make_clip(audio_format, frames), start_s=time.monotonic(), clock=time.monotonic
    )
    async with aiohttp.ClientSession() as http:
        result = await session.run(http)
    return report_session(result.record), result


@pytest.mark.parametrize("audio_format", list(AudioFormat))
async def test_every_frame_is_answered_in_every_format(audio_format: AudioFormat) -> None:
    async with fake_server() as server:
        report, result = await hold(server, audio_format)
    assert report.outcome is SessionOutcome.ANSWERED
    assert (report.counts.sent, report.counts.answered, report.counts.lost) == (FRAMES, FRAMES, 0)
    assert report.counts.misplaced == 0
    assert report.text == "".join(f" {frame}" for frame in range(FRAMES))
    assert b"".join(result.payloads) == b"".join(data for _, data, _ in server.heard)
    assert report.times.latency is not None
    assert 4.0 < report.times.latency.p50 < 5000.0
    assert (report.times.server is None) == (audio_format is AudioFormat.OGG)
    assert server.goodbyes == 1


async def test_a_stock_server_is_probed_by_the_clients_clock_alone() -> None:
    async with fake_server(Behaviour(is_stock=True)) as server:
        report, _ = await hold(server, AudioFormat.OGG, is_extended=False)
    assert (report.outcome, report.counts.answered) == (SessionOutcome.ANSWERED, FRAMES)
    assert report.times.server is None
    assert server.goodbyes == 0
    assert server.queries == [{}]


async def test_messages_leave_in_real_time() -> None:
    """None sooner, and none later than the pauses of this machine account for."""
    async with fake_server() as server:
        _, result = await hold(server)
    arrived_s = np.array([now_s for _, _, now_s in server.heard])
    assert len(arrived_s) == FRAMES * 4
    timeline = result.record.timeline
    # A frame is due with the last of its four messages; the server and the client have one clock.
    assert (np.diff(timeline.sent_s) >= 0.08 - 1e-6).all()
    assert (arrived_s[3::4] >= timeline.sent_s - 0.002).all()
    pauses_s = timeline.send_late_ms.sum() / 1000
    assert timeline.sent_s[-1] - timeline.sent_s[0] <= 0.08 * (FRAMES - 1) + pauses_s + 1e-6


async def test_a_server_without_the_extension_is_named_as_such() -> None:
    async with fake_server(Behaviour(is_stock=True)) as server:
        report, _ = await hold(server, ready_timeout_s=2.0)
    assert report.outcome is SessionOutcome.REJECTED
    assert report.detail == "not admitted within 2 s; use --stock for a stock Moshi server"


async def test_a_full_server_rejects_in_its_own_words() -> None:
    async with fake_server(Behaviour(slots=0)) as server:
        report, _ = await hold(server)
        stock, _ = await hold(server, AudioFormat.OGG, is_extended=False)
    assert (report.outcome, report.detail) == (SessionOutcome.REJECTED, "the server is full")
    assert (stock.outcome, stock.detail) == (
        SessionOutcome.REJECTED,
        "refused with HTTP 503, retry after 7 s",
    )
    assert report.counts.planned == FRAMES


async def test_a_refused_query_is_explained_in_the_servers_words() -> None:
    async with fake_server(Behaviour(refuses_with=400)) as server:
        report, _ = await hold(server)
    assert report.detail == "refused with HTTP 400: text_topk is 0, it must be 1 or more"


async def test_a_missing_key_is_explained_with_its_option() -> None:
    async with fake_server(Behaviour(refuses_with=401)) as server:
        report, _ = await hold(server)
    assert report.detail.startswith("refused with HTTP 401: ")
    assert report.detail.endswith("; give it by --api-key-file FILE")


async def test_in_the_queue_it_waits_and_is_let_in_when_a_row_is_free() -> None:
    async with fake_server(Behaviour(slots=1)) as server:
        server.active = 1

        async def leave() -> None:
            while not server.queries:  # noqa: ASYNC110 (the caller has not come yet)
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            server.active = 0
            server.freed.set()

        leaving = asyncio.ensure_future(leave())
        report, _ = await hold(server, wait_s=30.0)
        await leaving
    assert (report.outcome, report.counts.answered) == (SessionOutcome.ANSWERED, FRAMES)
    assert report.ready_ms is not None
    assert report.ready_ms > 190


async def test_frames_without_reply_are_lost_and_slow_ones_late() -> None:
    delays: dict[int, float | None] = {2: None, FRAMES - 1: 0.15}
    behaviour = Behaviour(delay_s=lambda frame: delays.get(frame, 0.005))
    async with fake_server(behaviour) as server:
        report, _ = await hold(server)
    assert (report.counts.answered, report.counts.lost) == (FRAMES - 1, 1)
    assert report.counts.late >= 1
    assert report.counts.gaps >= 1


async def test_a_reply_that_overtakes_another_is_misplaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame overtaken comes after its successor: by then it is out of order."""
    waits_for = {1: 2, FRAMES - 1: 1}  # the last one keeps the session until the overtaken one has come
    said = [asyncio.Event() for _ in range(FRAMES)]
    reply = FakeServer.reply

    async def reply_in_turn(server: FakeServer, socket: Any, frame: int, *rest: Any) -> None:
        if frame in waits_for:
            await said[waits_for[frame]].wait()
        await reply(server, socket, frame, *rest)
        said[frame].set()

    monkeypatch.setattr(FakeServer, "reply", reply_in_turn)
    async with fake_server() as server:
        report, _ = await hold(server)
    assert report.counts.misplaced == 4
    assert report.counts.lost == 1


async def test_delay_frames_are_not_expected() -> None:
    for is_extended in (True, False):
        async with fake_server(Behaviour(delay_frames=2, is_stock=not is_extended)) as server:
            audio_format = AudioFormat.OPUS if is_extended else AudioFormat.OGG
            report, _ = await hold(server, audio_format, is_extended=is_extended, delay_frames=2)
        assert (report.counts.expected, report.counts.answered, report.counts.lost) == (
            FRAMES - 2,
            FRAMES - 2,
            0,
        )


async def test_an_ogg_stream_finds_its_place_again_after_an_interruption() -> None:
    behaviour = Behaviour(interrupts_at=4, delay_s=lambda frame: None if frame in (2, 3) else 0.005)
    async with fake_server(behaviour) as server:
        report, result = await hold(server, AudioFormat.OGG)
    assert report.counts.interruptions == 1
    assert report.counts.lost == 2
    assert np.flatnonzero(np.isnan(result.record.timeline.replied_s)).tolist() == [2, 3]


async def test_a_session_the_server_ends_has_failed_with_its_words() -> None:
    async with fake_server(Behaviour(closes_at=3)) as server:
        report, _ = await hold(server)
    assert (report.outcome, report.detail) == (SessionOutcome.FAILED, "the step failed")
    assert report.counts.answered == 3


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "the server sent an unusable message: a message of 0 bytes"),
        (
            moshi.encode(moshi.StampedAudio(0, 0, 0, b"")),
            "the server sent an unusable message: an Opus packet of 0 bytes",
        ),
        (b"\x10{}", "the server sent an unusable message: an event of type None"),
    ],
)
async def test_a_server_that_sends_nonsense_is_a_failed_session(raw: bytes, words: str) -> None:
    async with fake_server(Behaviour(says=(raw,))) as server:
        report, _ = await hold(server)
    assert report.outcome is SessionOutcome.FAILED
    assert words in report.detail


async def test_what_a_client_need_not_know_is_passed_over() -> None:
    says = (b"\xf0new", b"\x06", moshi.encode(moshi.Event("weather", {"is": "fine"})))
    async with fake_server(Behaviour(says=says)) as server:
        report, _ = await hold(server)
    assert report.outcome is SessionOutcome.ANSWERED


async def test_other_frames_than_ours_are_refused_with_both_numbers() -> None:
    async with fake_server(Behaviour(frame_samples=960)) as server:
        report, _ = await hold(server)
    assert report.outcome is SessionOutcome.REJECTED
    assert "frames of 960 samples at 24000 Hz, this client needs 1920 at 24000" in report.detail


async def test_nobody_there_is_a_rejection(unused_tcp_port: int) -> None:
    server = FakeServer(Behaviour())
    server.address = type(server.address)("127.0.0.1", unused_tcp_port)
    report, _ = await hold(server)
    assert report.outcome is SessionOutcome.REJECTED
    assert "connection lost" in report.detail


async def test_stopping_ends_the_speech_and_still_hears_the_replies() -> None:
    async with fake_server(Behaviour(delay_s=lambda frame: 0.05)) as server, aiohttp.ClientSession() as http:
        url = server.address.chat({"ext": "1", "format": "opus"})
        plan = SessionPlan(session=0, url=url, connect_after_s=0.0, phase_s=0.0, grace_s=30.0)
        session = ProbeSession(
            plan, make_clip(AudioFormat.OPUS, 100), start_s=time.monotonic(), clock=time.monotonic
        )
        running = asyncio.ensure_future(session.run(http))
        async with asyncio.timeout(120.0):
            while session.recorder.frames_sent < 2:  # noqa: ASYNC110 (nobody could set an event)
                await asyncio.sleep(0.01)
        session.stop()
        result = await running
    report = report_session(result.record)
    assert report.outcome is SessionOutcome.ANSWERED
    assert 2 <= report.counts.sent < 100
    assert report.counts.answered == report.counts.sent


async def test_stopping_before_the_connection_is_no_conversation() -> None:
    async with fake_server() as server, aiohttp.ClientSession() as http:
        plan = SessionPlan(session=0, url=server.address.chat({}), connect_after_s=60.0, phase_s=0.0)
        session = ProbeSession(
            plan, make_clip(AudioFormat.OPUS), start_s=time.monotonic(), clock=time.monotonic
        )
        asyncio.get_running_loop().call_later(0.1, session.stop)
        result = await session.run(http)
    assert result.record.outcome is SessionOutcome.REJECTED
    assert result.record.detail == "stopped before it connected"
    assert server.sessions == 0
