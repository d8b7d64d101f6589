"""Calls that outlive their connections, in one process."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from antiphon.backends.base import FloatArray
from antiphon.models.spec import ModelSpec
from antiphon.protocol import events, moshi, resume
from antiphon_client.thread import CallThread
from tests.serve.harness import Client, Server, serving, speech
from tests.serve.resuming import IN_FLIGHT_FRAMES, QUERY, ResumingCaller
from tests.support.null_models import CODEC, DUPLEX

SEEDS = "&text_seed=5&audio_seed=7"


def caller_of(server: Server, pcm: FloatArray) -> ResumingCaller:
    return ResumingCaller(server.http, server.url(f"/api/chat?{QUERY}{SEEDS}", "ws"), pcm)


async def spoken(spec: ModelSpec, cuts_at: list[int], frames: int) -> ResumingCaller:
    """One whole call, cut whenever it has answered so many frames."""
    async with serving(spec=spec, engine={"fixed_batch": True}) as server:
        caller = caller_of(server, speech(frames))
        running = asyncio.ensure_future(caller.run())
        for at in cuts_at:
            await caller.until_answered(at)
            caller.cut()
        await running
        await server.is_empty()
        assert server.engine.sessions.resuming.detached == 0
    return caller


@pytest.mark.parametrize("spec", [CODEC, DUPLEX], ids=lambda it: it.name)
async def test_twenty_cuts_lose_no_word_and_repeat_no_sound(spec: ModelSpec) -> None:
    frames = 150
    cuts_at = sorted(np.random.default_rng(3).integers(1, frames - 5, 20).tolist())
    uncut, cut = await spoken(spec, [], frames), await spoken(spec, cuts_at, frames)
    assert cut.thread.reason == ""
    assert cut.thread.resumptions >= 15  # two cuts within one connection's making are one
    assert "".join(cut.heard.text) == "".join(uncut.heard.text)
    assert all(len(pieces) == 1 for pieces in cut.heard.audio.values())
    assert list(cut.heard.audio) == sorted(cut.heard.audio)
    # This client acknowledges what it has heard, so all that it lacks is within what is sent again.
    assert cut.heard.audio.keys() == uncut.heard.audio.keys()
    for frame, (pcm,) in uncut.heard.audio.items():
        np.testing.assert_array_equal(cut.heard.audio[frame][0], pcm)


@pytest.mark.parametrize("spec", [CODEC, DUPLEX], ids=lambda it: it.name)
async def test_what_was_sent_to_a_client_that_did_not_read_it_is_said_again(spec: ModelSpec) -> None:
    async with serving(spec=spec) as server:
        caller = caller_of(server, speech(30))
        caller.sends_until = 10
        running = asyncio.ensure_future(caller.run())
        await caller.until_answered(10)
        caller.stop_reading()
        caller.go_on()
        (call,) = server.calls
        said = 10 + IN_FLIGHT_FRAMES - spec.delay_frames
        await server.eventually(lambda: call.participant.stats().frames_out == said)
        caller.cut()
        await running
        assert caller.thread.missed_frames == 0
        assert list(caller.heard.audio) == list(range(spec.delay_frames, 30))


async def claim_again(server: Server, claim: bytes) -> moshi.Event:
    """What a connection is told that shows this claim."""
    async with server.call("ext=1&format=pcm_f32le&resume=again") as client:
        await client.ws.send_bytes(claim)
        return await told(client)


async def told(client: Client) -> moshi.Event:
    """The first event; a text or an audio is none."""
    event: moshi.Event = await client.until(lambda it: isinstance(it, moshi.Event))
    events.check_event(event, sender=events.Sender.SERVER)
    return event


def thread_of(client: Client) -> CallThread:
    """What a client keeps that has received these messages; they came without numbers, or count as such."""
    thread = CallThread()
    for message in client.messages:
        if isinstance(message, moshi.Event | moshi.StampedAudio):
            thread.unwrap(moshi.encode(message))
    return thread


async def test_ready_carries_a_token_and_a_plain_call_has_none() -> None:
    async with serving() as server:
        async with server.call(QUERY) as client:
            offered = (await client.event("ready")).fields["resume"]
            assert len(resume.token_of(offered["token"])) == 16
            assert (offered["window_s"], offered["replay_ms"]) == (30.0, 400)
        async with server.call("ext=1&format=pcm_f32le") as client:
            assert "resume" not in (await client.event("ready")).fields


async def test_of_two_racing_resumes_one_wins_and_the_old_token_fails_afterwards() -> None:
    async with serving() as server:
        async with server.caller("resume=1") as client:
            thread = thread_of(client)
            client.cut()
        claim = thread.claim(0)
        async with (
            server.call("ext=1&format=pcm_f32le&resume=again") as one,
            server.call("ext=1&format=pcm_f32le&resume=again") as two,
        ):
            await asyncio.gather(one.ws.send_bytes(claim), two.ws.send_bytes(claim))
            outcomes = sorted([(await told(one)).type, (await told(two)).type])
            assert "resumed" in outcomes
            assert set(outcomes) <= {"resume_failed", "replaced", "resumed"}
            await server.eventually(lambda: len(server.calls) == 1)
            ends = {asyncio.ensure_future(it.closed()): it for it in (one, two)}
            done, current_speech = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            assert [end.result().code in (4404, 4409) for end in done] == [True]
            (unfinished,) = current_speech  # it speaks and is answered
            unfinished.cancel()
            await asyncio.gather(unfinished, return_exceptions=True)
            winner = ends[unfinished]
            await winner.ws.send_bytes(resume.encode_ack(resume.Ack(-1, -1)))
            await winner.speak(speech(1))
            assert (await winner.reply())[0].frame == 0
            failed = await claim_again(server, claim)
            assert (failed.type, failed.fields) == ("resume_failed", {"reason": "replaced"})
        await server.is_empty()


async def test_a_connection_that_still_stands_is_replaced() -> None:
    async with serving() as server, server.caller("resume=1") as first:
        await first.speak(speech(2))
        await first.until(lambda it: isinstance(it, moshi.StampedAudio) and it.frame == 1)
        thread = thread_of(first)
        async with server.call("ext=1&format=pcm_f32le&resume=again") as second:
            await second.ws.send_bytes(thread.claim(2))
            resumed = await told(second)
            assert resumed.fields["input_frame"] == 2
            assert resumed.fields["replay_from"] == 2
            assert resumed.fields["missed_frames"] == 0
            await first.event("replaced")
            assert (await first.closed()).code == 4409
            await second.speak(speech(1))
            assert (await second.reply())[0].frame == 2


@pytest.mark.parametrize("end", ["bye", "close"])
async def test_a_clean_end_is_final(end: str) -> None:
    async with serving() as server:
        async with server.caller("resume=1") as client:
            thread = thread_of(client)
            if end == "bye":
                await client.send(events.bye())
                await client.closed()
        await server.is_empty()
        failed = await claim_again(server, thread.claim(0))
        assert failed.fields == {"reason": "unknown"}


async def test_a_call_that_is_not_resumed_in_time_gives_its_row_back() -> None:
    async with serving(slots=1, engine={"resume_window_s": 0.5}) as server:
        async with server.caller("resume=1") as client:
            thread = thread_of(client)
            client.cut()
        await server.is_empty()
        failed = await claim_again(server, thread.claim(0))
        assert failed.fields == {"reason": "expired"}


async def test_a_detached_call_gives_way_to_a_caller_that_waits() -> None:
    async with serving(slots=1, engine={"resume_yield_s": 0.3}) as server:
        async with server.caller("resume=1") as client:
            client.cut()
        await server.eventually(lambda: server.engine.sessions.resuming.detached == 1)
        async with server.call("ext=1&format=pcm_f32le&wait=20") as waiting:
            await waiting.event("ready")
        await server.is_empty()


async def test_a_server_that_leaves_ends_a_detached_call_at_once() -> None:
    async with serving(slots=1) as server:
        async with server.caller("resume=1") as client:
            client.cut()
        await server.eventually(lambda: server.engine.sessions.resuming.detached == 1)
        (call,) = server.calls
        call.announce_draining(30.0)
        await server.is_empty()


async def test_a_detached_call_takes_no_step() -> None:
    async with serving() as server:
        async with server.caller("resume=1") as client:
            await client.speak(speech(1))
            await client.reply()
            client.cut()
        await server.eventually(lambda: server.engine.sessions.resuming.detached == 1)
        await server.eventually(lambda: server.engine.rows.is_frozen.sum() == 1)


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"\x01abc", 1007),
        (resume.encode_claim(resume.Claim(bytes(16), -1, -1, 0)), 4404),
        (resume.encode_claim(resume.Claim(bytes(16), -1, -1, 0))[:-1], 1007),
    ],
)
async def test_what_is_no_claim_is_refused_and_takes_no_row(first: bytes, code: int) -> None:
    async with serving() as server:
        async with server.call("ext=1&format=pcm_f32le&resume=again") as client:
            await client.ws.send_bytes(first)
            assert (await client.closed()).code == code
        assert server.engine.health().active == 0


async def test_an_address_at_its_limit_can_resume_its_call() -> None:
    async with serving(limits={"max_sessions_per_address": 1}) as server:
        async with server.caller("resume=1") as client:
            thread = thread_of(client)
            client.cut()
        async with server.call("ext=1&format=pcm_f32le") as further:
            assert (await told(further)).type == "error"  # the detached call counts
        assert (await claim_again(server, thread.claim(0))).type == "resumed"


@pytest.mark.parametrize("path", ["/api/chat", "/v1/realtime"])
async def test_an_address_at_its_limit_gets_no_further_call_by_a_word_of_its_query(path: str) -> None:
    async with serving(limits={"max_sessions_per_address": 1}) as server, server.caller():
        status, text, _ = await server.get(f"{path}?resume=again")
        assert status == 429
        assert "your address 127.0.0.1 has 1 of 1 sessions" in text


async def test_ogg_cannot_be_resumed() -> None:
    async with serving() as server:
        status, text, _ = await server.get("/api/chat?ext=1&resume=1")
        assert status == 400
        assert text == (
            "resume=1 with format=ogg: a stream of pages cannot be joined; "
            "request opus, pcm_s16le or pcm_f32le\n"
        )
