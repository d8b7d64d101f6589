"""The contract of a session, in one process and across two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

from antiphon.backends.base import TextEntry
from antiphon.errors import (
    DrainingError,
    ServerFullError,
    SessionError,
    SessionFailedError,
    UnsupportedError,
)
from antiphon.ipc.engine_client import CallSession
from antiphon.ipc.values import FrameReply, SessionState, SessionStats
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from tests.engine.bench import frames, heard, pcm_of, words
from tests.engine.fakes import FRAME
from tests.ipc.engine_process import BROKEN
from tests.ipc.places import PLACES, Call, Place, open_call, until

Enter = Callable[..., Awaitable[Place]]


@pytest.fixture(params=PLACES)
async def enter(request: pytest.FixtureRequest) -> AsyncIterator[Enter]:
    """Makes an engine in the place that is the turn's."""
    async with AsyncExitStack() as places:

        async def enter(kind: str = "codec", **facts: Any) -> Place:
            return await places.enter_async_context(PLACES[request.param]({"kind": kind, **facts}))

        yield enter


def assert_adds_up(stats: SessionStats) -> None:
    assert stats.frames_in == stats.dropped_in + stats.flushed_in + stats.queue_frames + stats.frames_taken
    gone = stats.silent + stats.lost + stats.flushed_out + stats.dropped_out
    assert stats.frames_taken == gone + stats.reply_frames + stats.frames_out


async def replies_to(call: Call, count: int) -> list[FrameReply]:
    """The next so many replies."""
    taken: list[FrameReply] = []

    def is_enough(session: CallSession) -> bool:
        taken.extend(session.take())
        return len(taken) >= count

    await call.until(is_enough)
    return taken


async def test_frames_come_back_in_order_with_their_times(enter: Enter) -> None:
    call = await open_call(await enter(step_ms=2), text_seed=7)
    session = call.session
    assert session.state is SessionState.ACTIVE
    now_s = time.monotonic()
    session.push(frames(1, 2)[: FRAME + 3], now_s)
    session.push(frames(1, 2, 3)[FRAME + 3 :], now_s)
    replies = await replies_to(call, 3)
    assert [pcm_of(reply)[:4].tolist() for reply in replies] == [[1, 1, 1, 7], [2, 2, 3, 7], [3, 3, 6, 7]]
    assert [reply.frame for reply in replies] == [0, 1, 2]
    assert all(reply.complete_s == now_s for reply in replies)
    assert all(reply.step_ms >= 2 for reply in replies)
    for reply, latency_s in zip(replies, (0.01, 0.02, 1.0), strict=True):
        session.sent(reply, now_s + latency_s)
    await call.until(lambda session: session.is_idle)
    stats = session.stats()
    assert_adds_up(stats)
    assert (stats.frames_in, stats.frames_out, stats.lost, stats.late) == (3, 3, 0, 1)
    assert stats.step_ms_p50 >= 2


async def test_calls_hear_their_own_frames_alone(enter: Enter) -> None:
    place = await enter(slots=4)
    calls = [await open_call(place) for _ in range(4)]
    for number in range(30):
        for index, call in enumerate(calls):
            call.session.push(frames(100 * index + number), time.monotonic())
        for index, call in enumerate(calls):
            assert heard(await replies_to(call, 1)) == [100 * index + number]


async def test_what_was_flushed_never_comes(enter: Enter) -> None:
    call = await open_call(await enter(step_ms=20))
    session = call.session
    session.push(frames(1, 2, 3), time.monotonic())
    assert session.flush() == 3
    session.push(frames(4), time.monotonic())
    (reply,) = await replies_to(call, 1)
    assert (reply.frame, heard([reply])) == (3, [4])
    await call.until(lambda session: session.is_idle)
    assert_adds_up(session.stats())
    assert session.stats().flushed_in + session.stats().flushed_out == 3


async def test_a_slow_reader_finds_a_gap_and_the_newest(enter: Enter) -> None:
    call = await open_call(await enter(output_frames=4))
    session = call.session
    for number in range(10):
        session.push(frames(number), time.monotonic())
        await call.until(lambda session: session.queue_frames == 0)
    await call.until(lambda session: session.stats().frames_taken == 10 and session.reply_frames == 4)
    taken = session.take_with_gap()
    assert (heard(taken.replies), taken.interrupted_at) == ([6, 7, 8, 9], 6)
    assert session.stats().dropped_out == 6
    assert_adds_up(session.stats())


async def test_a_caller_who_outruns_a_live_model_loses_the_oldest(enter: Enter) -> None:
    call = await open_call(await enter(step_ms=50, input_frames=4, slots=1))
    session = call.session
    session.push(frames(*range(20)), time.monotonic())
    assert session.queue_frames <= 4
    session.finish()
    replies: list[FrameReply] = []

    def is_done(session: CallSession) -> bool:
        replies.extend(session.take())
        return session.is_done

    await call.until(is_done)
    stats = session.stats()
    assert_adds_up(stats)
    assert (stats.frames_in, stats.frames_out) == (20, len(replies))
    assert stats.dropped_in == 20 - len(replies) >= 12
    assert heard(replies) == sorted(heard(replies))


async def test_a_recogniser_refuses_what_does_not_fit_and_loses_nothing(enter: Enter) -> None:
    call = await open_call(await enter("stt", input_frames=2, output_frames=2, step_ms=5))
    session = call.session
    assert session.room_samples == 2 * FRAME
    with pytest.raises(SessionError, match="24 samples were pushed where 16 fit"):
        session.push(frames(1, 2, 3), 0.0)
    sent, taken = 0, list[FrameReply]()
    async with asyncio.timeout(120.0):
        while len(taken) < 30:
            while sent < 30 and session.room_samples >= FRAME:
                session.push(frames(sent), time.monotonic())
                sent += 1
            call.news.clear()
            taken += session.take()
            await call.news.wait() if len(taken) < 30 else None
    assert [reply.text_token for reply in taken] == list(range(1, 31))
    assert {reply.vad for reply in taken} == {(0.25, 0.5)}
    assert session.stats().dropped_in == session.stats().dropped_out == 0


async def test_silence_heard_aside_leaves_no_trace(enter: Enter) -> None:
    call = await open_call(await enter("stt"))
    session = call.session
    session.push(frames(1), time.monotonic())
    assert [reply.text_token for reply in await replies_to(call, 1)] == [1]
    session.feed_padding(2, time.monotonic())
    assert not session.is_idle
    silent = await replies_to(call, 2)
    assert [(reply.text_token, reply.is_padding, reply.frame) for reply in silent] == [
        (2, True, -1),
        (3, True, -1),
    ]
    await call.until(lambda session: session.is_idle)
    session.feed_padding(3, time.monotonic())
    session.push(frames(2), time.monotonic())  # it goes on: what it asked for is void
    replies = [reply for reply in await replies_to(call, 1) if not reply.is_padding]
    while not replies:
        replies = [reply for reply in await replies_to(call, 1) if not reply.is_padding]
    assert [reply.text_token for reply in replies] == [2]
    await call.until(lambda session: session.is_idle)
    assert_adds_up(session.stats())


async def test_words_are_spoken_in_order_and_the_end_is_seen(enter: Enter) -> None:
    call = await open_call(await enter("tts", text_entries=8))
    session = call.session
    assert session.room_entries == 8
    with pytest.raises(SessionError, match="9 words were pushed where 8 of 8 fit"):
        session.push_text(words(*range(9)), 0.0)
    session.push_text(words(3, 4, frames_each=2), time.monotonic())
    assert heard(await replies_to(call, 4)) == [3, 3, 4, 4]
    await call.until(lambda session: session.is_idle)
    assert session.room_entries == 8
    session.push_text([TextEntry((5,)), TextEntry((6,), is_last=True)], time.monotonic())
    session.push_text(words(7), time.monotonic())  # after the end: not heard
    assert heard(await replies_to(call, 2)) == [5, 6]
    await call.until(lambda session: session.is_done)


async def test_a_text_begins_anew_in_the_same_row_and_nothing_of_the_last_one_is_heard(enter: Enter) -> None:
    call = await open_call(await enter("tts", slots=1, step_ms=2))
    session = call.session
    for token in (3, 5, 7):
        session.push_text(words(token, token, token, frames_each=4), time.monotonic())
        if token != 3:
            session.finish()
        taken = await replies_to(call, 2)  # and more are on their way
        assert {heard([reply])[0] for reply in taken} == {token}
        session.restart(None)
        assert session.state is SessionState.PRIMING
        assert session.room_entries == 0
        assert not session.is_done
        await call.until(lambda session: session.state is SessionState.ACTIVE)
        assert session.take() == []
        assert session.queue_frames == 0
    session.push_text(words(9), time.monotonic())
    session.finish()
    (last,) = await replies_to(call, 1)
    assert heard([last]) == [9]
    await call.until(lambda session: session.is_done)
    assert_adds_up(session.stats())


async def test_a_session_that_takes_audio_has_no_text_to_begin_anew(enter: Enter) -> None:
    call = await open_call(await enter("stt"))
    with pytest.raises(UnsupportedError, match="a stt session takes audio, not text"):
        call.session.restart(None)


async def test_words_that_were_flushed_wait_no_more(enter: Enter) -> None:
    place = await enter("tts", slots=1)
    first = await open_call(place)
    call = await open_call(place, wait_s=20.0)
    call.session.push_text(words(1, 2), time.monotonic())
    assert call.session.queue_frames == 2
    call.session.flush()
    assert call.session.queue_frames == 0
    call.session.push_text(words(8), time.monotonic())
    call.session.finish()
    first.session.close()
    assert heard(await replies_to(call, 1)) == [8]
    await call.until(lambda session: session.is_done)


async def test_a_prompt_is_read_first(enter: Enter) -> None:
    place = await enter("duplex")
    prompt = Prompt(np.full((3, 2), 5, np.int32), voice=np.ones((2, FRAME), np.float32))
    call = await open_call(place, prompt=prompt)
    await call.until(lambda session: session.state is SessionState.ACTIVE)
    call.session.push(frames(1), time.monotonic())
    (reply,) = await replies_to(call, 1)
    assert pcm_of(reply)[2] == 15 + 1
    with pytest.raises(SessionError, match="a prompt arrived after the first input"):
        call.session.prime(prompt)
    late = await open_call(place)
    late.session.prime(prompt)
    late.session.prime(Prompt(np.full((4, 2), 2, np.int32)))
    await late.until(lambda session: session.state is SessionState.ACTIVE)
    late.session.push(frames(1), time.monotonic())
    (reply,) = await replies_to(late, 1)
    assert pcm_of(reply)[2] == 8 + 1, "the one given last"


async def test_a_prompt_for_a_model_that_takes_none_is_refused(enter: Enter) -> None:
    with pytest.raises(UnsupportedError, match="the fake backend takes no prompt for fake"):
        await open_call(await enter(), prompt=Prompt(np.ones((3, 2), np.int32)))


async def test_parameters_change_with_the_next_frame(enter: Enter) -> None:
    call = await open_call(await enter(), text_seed=1)
    call.session.push(frames(1), time.monotonic())
    assert pcm_of((await replies_to(call, 1))[0])[3] == 1
    for seed in range(2, 200):  # the frame is in memory before the message is read
        call.session.set_parameters(SamplingParameters(text_seed=seed))
        assert call.session.parameters.text_seed == seed
        call.session.push(frames(1), time.monotonic())
        assert pcm_of((await replies_to(call, 1))[0])[3] == seed


async def test_who_waits_knows_its_place_and_gets_the_next_row(enter: Enter) -> None:
    place = await enter(slots=1)
    first, second, third = [await open_call(place, wait_s=20.0) for _ in range(3)]
    assert [call.session.state for call in (first, second, third)] == ["active", "queued", "queued"]
    assert [call.session.position for call in (first, second, third)] == [None, 0, 1]
    assert second.session.retry_after_s >= 1
    first.session.close()
    await second.until(lambda session: session.state is SessionState.ACTIVE)
    await third.until(lambda session: session.position == 0)
    second.session.push(frames(6), time.monotonic())
    assert heard(await replies_to(second, 1)) == [6]


async def test_without_room_a_caller_is_refused_with_the_time_to_try_again(enter: Enter) -> None:
    place = await enter(slots=1, max_queue=1)
    await place.port.check_room(0.0)
    first = await open_call(place)
    for attempt in (open_call(place), place.port.check_room(0.0)):
        with pytest.raises(ServerFullError, match="the only row is in use") as caught:
            await attempt
        assert caught.value.retry_after_s >= 1
    waits = await open_call(place, wait_s=0.1)
    await waits.until(lambda session: session.state is SessionState.CLOSED)
    assert isinstance(waits.session.error, ServerFullError)
    assert "no row became free within the 0.1 s" in str(waits.session.error)
    first.session.close()
    assert (await open_call(place, wait_s=20.0)).session.error is None


async def test_a_refusal_does_not_wait_for_a_step(enter: Enter) -> None:
    place = await enter(slots=1, step_ms=1000)
    call = await open_call(place)
    call.session.push(frames(1, 2), time.monotonic())
    await replies_to(call, 1)  # the second step begins
    for attempt in (open_call(place), place.port.check_room(0.0)):
        with pytest.raises(ServerFullError):
            await attempt
    assert call.session.reply_frames == 0, "it still runs"
    await replies_to(call, 1)


async def test_a_row_that_fails_ends_its_call_alone(enter: Enter) -> None:
    place = await enter()
    broken, other = await open_call(place), await open_call(place)
    other.session.push(frames(1), time.monotonic())
    await replies_to(other, 1)
    broken.session.push(frames(BROKEN), time.monotonic())
    await broken.until(lambda session: session.state is SessionState.CLOSED)
    assert isinstance(broken.session.error, SessionFailedError)
    assert str(broken.session.error) == "the model failed at frame 0: a broken frame"
    assert_adds_up(broken.session.stats())
    broken.session.push(frames(1), time.monotonic())
    assert broken.session.take() == []
    other.session.push(frames(2), time.monotonic())
    assert heard(await replies_to(other, 1)) == [2]


async def test_a_call_ends_by_itself_after_its_steps(enter: Enter) -> None:
    call = await open_call(await enter(), max_steps=2)
    call.session.push(frames(1, 2, 3), time.monotonic())
    assert heard(await replies_to(call, 2)) == [1, 2]
    await call.until(lambda session: session.is_done)
    stats = call.session.stats()
    assert_adds_up(stats)
    assert (stats.frames_in, stats.frames_out, stats.flushed_in) == (3, 2, 1)


async def test_a_tail_is_filled_up_and_answered(enter: Enter) -> None:
    call = await open_call(await enter())
    call.session.push(frames(1, 2)[: FRAME + 2], time.monotonic())
    call.session.finish()
    call.session.push(frames(9), time.monotonic())
    assert heard(await replies_to(call, 2)) == [1, 2]
    await call.until(lambda session: session.is_done)


async def test_rows_go_from_call_to_call_and_each_begins_anew(enter: Enter) -> None:
    place = await enter(slots=2)
    for number in range(60):
        call = await open_call(place, wait_s=20.0)
        await call.until(lambda session: session.state is SessionState.ACTIVE)
        call.session.push(frames(number, 1), time.monotonic())
        first, second = await replies_to(call, 2)
        assert pcm_of(first)[:3].tolist() == [number, 1, number]
        assert pcm_of(second)[:3].tolist() == [1, 2, number + 1]
        call.session.close()
        stats = call.session.stats()
        assert (stats.frames_in, stats.frames_out, stats.reply_frames) == (2, 2, 0)
        assert call.session.state is SessionState.CLOSED


async def test_a_draining_engine_takes_nobody_and_ends_who_waits(enter: Enter) -> None:
    place = await enter(slots=1)
    active, waits = await open_call(place), await open_call(place, wait_s=20.0)
    place.drain()
    await waits.until(lambda session: session.state is SessionState.CLOSED)
    assert isinstance(waits.session.error, DrainingError)
    with pytest.raises(DrainingError, match="the server is shutting down and admits no new sessions"):
        await open_call(place)
    active.session.push(frames(1), time.monotonic())
    assert heard(await replies_to(active, 1)) == [1]


async def test_health_says_how_many_rows_are_taken(enter: Enter) -> None:
    place = await enter(slots=2)
    assert place.port.info.slots == 2
    assert place.port.info.spec.frame_samples == FRAME
    call = await open_call(place)
    await until(lambda: place.port.health().active == 1)
    health = place.port.health()
    assert (health.alive, health.ready, health.slots, health.detail) == (True, True, 2, "ok")
    call.session.close()
