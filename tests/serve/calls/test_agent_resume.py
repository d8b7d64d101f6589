"""Resumed calls of a voice agent: history, turns and words equal those of an uncut call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from antiphon.errors import SessionFailedError
from antiphon.log import Log
from antiphon.protocol import events, moshi, resume
from antiphon.serve.hosting.front_end import drain
from antiphon.serve.hosting.front_end_links import FrontEndLinks
from antiphon.serve.transport.socket import Socket
from antiphon.supervisor.messages import Link
from antiphon_client.thread import CallThread
from tests.serve.agent_client import SILENCE, agent_serving, is_left, lettered, messages_of, word
from tests.serve.asr_client import spoken
from tests.serve.harness import FRAME_SAMPLES, Client, Server, serving
from tests.serve.tts_client import levels
from tests.support.text_model import Answer, TextModelServer, ending, piece, says

QUERY = "ext=1&format=pcm_f32le&model=assistant&resume=1"
AGAIN = QUERY.replace("resume=1", "resume=again")
REPLY = "it is one"


def thread_of(client: Client) -> CallThread:
    """What a client keeps of its call that received no numbered message yet."""
    thread = CallThread()
    for message in client.messages:
        if isinstance(message, moshi.Event):
            thread.unwrap(moshi.encode(message))
    return thread


async def begun(client: Client) -> CallThread:
    """A call that has begun."""
    await client.event("ready")
    return thread_of(client)


async def answer_to(server: Server, claim: bytes, query: str = AGAIN, **headers: str) -> Mapping[str, Any]:
    """What a connection is told first that shows this claim."""
    async with server.call(query, **headers) as client:
        await client.ws.send_bytes(claim)
        event = await client.until(lambda it: isinstance(it, moshi.Event))
        events.check_event(event, sender=events.Sender.SERVER)
        await client.send(events.bye())
        return {"type": event.type, **event.fields}


async def test_a_reply_continues_where_its_client_has_heard_it() -> None:
    async with (
        TextModelServer(says("one two three four five")).serve() as text,
        agent_serving(text) as server,
    ):
        async with server.call(QUERY) as first:
            thread = await begun(first)
            await first.speak(spoken([*word()[0], *SILENCE]))
            while not isinstance(await first.receive(), moshi.Unknown):  # the first numbered message
                pass
            first.cut()
        async with server.call(AGAIN) as second:
            await second.ws.send_bytes(thread.claim(0))
            told = await second.event("resumed")
            frames: list[int] = []
            sound: list[Any] = []
            words = ""
            while not words.endswith("five"):
                message = await second.receive()
                if isinstance(message, moshi.StampedAudio):
                    frames.append(message.frame)
                    sound.append(np.frombuffer(message.data, "<f4"))
                elif isinstance(message, moshi.Unknown):
                    inner = moshi.decode(message.data[4:])
                    words += inner.text if isinstance(inner, moshi.Text) else ""
            assert words == " one two three four five"
            assert frames == list(range(told.fields["replay_from"], frames[-1] + 1))
            heard = levels(np.concatenate(sound), None)
            assert heard == lettered(*words.split())[-len(heard) :]  # what came before may be lost to the cut
            await second.send(events.bye())
        await is_left(server)


async def test_a_frame_that_is_cut_within_is_sent_again_and_heard_once() -> None:
    said, written = word(letters=4)
    pcm = spoken([*said, *SILENCE])
    cut_at = 3 * FRAME_SAMPLES + FRAME_SAMPLES // 3
    async with TextModelServer(says(REPLY)).serve() as text, agent_serving(text) as server:
        async with server.call(QUERY) as first:
            thread = await begun(first)
            await first.speak(pcm[:cut_at])
            for _ in range(3):
                await first.reply()
            first.cut()
        async with server.call(AGAIN) as second:
            await second.ws.send_bytes(thread.claim(0))
            assert (await second.event("resumed")).fields["input_frame"] == 3
            await second.speak(pcm[3 * FRAME_SAMPLES :])
            await text.has_request.wait()
            await second.send(events.bye())
        await is_left(server)
    assert messages_of(text) == [("user", written)]


async def test_sound_of_a_reply_that_was_cut_is_not_sent_again() -> None:
    endless = Answer([piece("on and on and ")], stays=True)
    async with TextModelServer(endless).serve() as text, agent_serving(text) as server:
        async with server.call(QUERY) as first:
            thread = await begun(first)
            await first.speak(spoken([*word()[0], *SILENCE]))
            await first.until(lambda it: isinstance(it, moshi.StampedAudio) and any(it.data))
            await first.send(moshi.Event("flush"))
            await text.is_idle.wait()
            first.cut()
        async with server.call(AGAIN) as second:
            await second.ws.send_bytes(thread.claim(0))
            told = (await second.event("resumed")).fields
            await second.speak(spoken([*SILENCE, *SILENCE]))
            for _ in SILENCE:
                stamp, pcm = await second.reply()
                assert stamp.frame >= told["replay_from"]
                assert not pcm.any()
            await second.send(events.bye())
        await is_left(server)


async def test_words_whose_sound_is_lost_with_a_connection_leave_the_history() -> None:
    """The client has the first word, and gets what follows the lost sound."""
    words = [f"{letter}{letter}" for letter in "abcdefghijkl"]
    async with (
        TextModelServer(says(" ".join(words)), says("one")).serve() as text,
        agent_serving(text) as server,
    ):
        frames: list[int] = []
        async with server.call(QUERY) as first, server.call(AGAIN) as second:
            token = resume.decode_claim((await begun(first)).claim(0)).token
            await first.speak(spoken([*word()[0], *SILENCE]))
            while len(frames) < 14:
                message = await first.receive()
                if isinstance(message, moshi.StampedAudio) and any(message.data):
                    frames.append(message.frame)
            await second.ws.send_bytes(resume.encode_claim(resume.Claim(token, -1, frames[4], 0)))
            told = (await second.event("resumed")).fields
            assert told["missed_frames"] == told["replay_from"] - frames[4] - 1 > 0
            (call,) = server.calls
            await server.eventually(lambda: call.participant.is_idle)
            await second.speak(spoken([*word(40)[0], *SILENCE]))
            await server.eventually(lambda: len(text.requests) == 2)
            await second.send(events.bye())
        await is_left(server)
    starts = [0, *range(5, 5 + 3 * 11, 3)]  # in frames of the reply
    again = told["replay_from"] - frames[0]
    kept = ["aa", *(it for it, start in zip(words, starts, strict=True) if start >= again)]
    assert messages_of(text)[1] == ("assistant", " ".join(kept))
    assert 2 <= len(kept) < len(words)


async def test_a_connection_that_still_stands_is_replaced_and_tokens_are_good_once() -> None:
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        async with server.call(QUERY) as first, server.call(AGAIN) as second:
            thread = await begun(first)
            claim = thread.claim(0)
            await second.ws.send_bytes(claim)
            await second.event("resumed")
            await first.event("replaced")
            assert (await first.closed()).code == 4409
            await second.ws.send_bytes(resume.encode_ack(resume.Ack(-1, -1)))
            await second.speak(spoken([*word()[0], *SILENCE]))
            await second.until(lambda it: isinstance(it, moshi.StampedAudio))
            assert (await answer_to(server, claim))["reason"] == "unknown"
            assert len(server.calls) == 1
            await second.send(events.bye())
        await is_left(server)
        assert (await answer_to(server, claim))["reason"] == "unknown"


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (lambda it: resume.Claim(it, 7, -1, 0), "unknown"),  # a message that was not sent
        (lambda it: resume.Claim(bytes(16), -1, -1, 0), "unknown"),
    ],
)
async def test_a_wrong_claim_is_refused_and_harms_nothing(claim: Any, reason: str) -> None:
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        async with server.call(QUERY) as first:
            token = resume.token_of((await first.event("ready")).fields["resume"]["token"])
            assert (await answer_to(server, resume.encode_claim(claim(token))))["reason"] == reason
            await first.speak(spoken(SILENCE))
            await first.reply()
        await is_left(server)


async def test_a_call_without_a_connection_keeps_its_rows_until_its_window_is_over() -> None:
    async with (
        TextModelServer().serve() as text,
        agent_serving(text, slots=1, engine={"resume_window_s": 3.0}) as server,
    ):
        async with server.call(QUERY) as client:
            thread = await begun(client)
            client.cut()
        async with server.call("ext=1&format=pcm_f32le&model=assistant") as further:
            assert (await further.event("error")).fields["code"] == 1013
        await is_left(server)
        assert (await answer_to(server, thread.claim(0)))["reason"] == "unknown"


async def test_a_call_whose_row_is_lost_without_a_connection_ends() -> None:
    async with (
        TextModelServer().serve() as text,
        agent_serving(text, engine={"resume_window_s": 600.0}) as server,
    ):
        async with server.call(QUERY) as client:
            thread = await begun(client)
            client.cut()
        (call,) = server.calls
        await server.eventually(lambda: call.exchange.transport is None)
        call.participant.close(SessionFailedError("a step has failed"))
        await is_left(server)
        assert (await answer_to(server, thread.claim(0)))["reason"] == "unknown"


async def test_time_without_a_connection_is_neither_lateness_nor_latency() -> None:
    pressure, slow = (
        {"late_min_frames": 1},
        Answer([piece(reasoning_content="x"), piece("one "), *ending()], pause_s=0.2),
    )
    async with (
        TextModelServer(slow).serve() as text,
        agent_serving(text, engine=pressure, step_ms=20.0) as server,
    ):
        async with server.call(QUERY) as first:
            thread = await begun(first)
            await first.speak(spoken([*word()[0], *SILENCE]))
            await text.has_request.wait()
            first.cut()
        (call,) = server.calls
        await server.eventually(lambda: call.exchange.transport is None)
        parted_s = server.services.clock()
        await server.eventually(lambda: server.services.clock() > parted_s + 0.6)
        async with server.call(AGAIN) as second:
            await second.ws.send_bytes(thread.claim(0))
            await second.event("resumed")
            await second.until(lambda it: isinstance(it, moshi.StampedAudio) and any(it.data))
            async with server.call("ext=1&format=pcm_f32le&model=assistant") as other:
                await other.event("ready")  # late replies would have closed admission
            await second.send(events.bye())
        metrics = (await server.get("/metrics"))[1]
        assert 'antiphon_agent_sound_seconds_count{agent="assistant"} 0.0' in metrics
        await is_left(server)


@pytest.mark.parametrize("is_audio", [True, False])
async def test_what_waited_on_the_former_connection_counts_once_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, is_audio: bool
) -> None:
    """Its audio is heard once and answered on the next connection; its end is not that of the call."""
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        async with server.call(QUERY) as first, server.call(AGAIN) as second:
            thread = await begun(first)
            (call,) = server.calls
            former, is_congested = call.exchange.transport, Socket.is_congested
            monkeypatch.setattr(Socket, "is_congested", lambda it: it is former or is_congested(it))
            wait_for, has_waited = Socket.wait_for, asyncio.Event()

            async def wait_and_say(socket: Socket, event: asyncio.Event) -> None:
                has_waited.set()
                await wait_for(socket, event)

            monkeypatch.setattr(Socket, "wait_for", wait_and_say)
            if is_audio:
                await first.ws.send_bytes(
                    moshi.encode(moshi.Audio(np.zeros(2 * FRAME_SAMPLES, "<f4").tobytes()))
                )
            else:
                await first.send(events.bye())
            await has_waited.wait()
            await second.ws.send_bytes(thread.claim(0))
            heard = 2 if is_audio else 0
            assert (await second.event("resumed")).fields["input_frame"] == heard
            assert (await first.closed()).code == 4409
            await second.speak(np.zeros(FRAME_SAMPLES, np.float32))
            frames = [(await second.reply())[0].frame for _ in range(heard + 1)]
            assert frames == list(range(heard + 1))
            lead = call.participant.lead_frames
            await server.eventually(lambda: call.participant.stats().frames_in == lead + heard + 1)
            await second.send(events.bye())
            assert (await second.closed()).code == 1000
        await is_left(server)


async def test_a_server_that_drains_ends_a_call_without_a_connection_and_announces_it_to_others() -> None:
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        async with server.call(QUERY) as gone, server.call(QUERY) as here:
            await begun(gone)
            thread = await begun(here)
            gone.cut()
            await server.eventually(lambda: sum(it.exchange.transport is None for it in server.calls) == 1)
            for call in server.calls:
                call.announce_draining(30.0)
            await here.event("draining")
            await server.eventually(lambda: len(server.calls) == 1)
            assert not any(it.can_move for it in server.calls)
            assert (await answer_to(server, thread.claim(0)))["reason"] == "draining"
            here.cut()  # and nothing waits for its client
        await is_left(server)


async def test_a_call_that_was_not_told_of_a_drain_cannot_be_resumed_in_it() -> None:
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        async with server.call(QUERY) as client:
            thread = await begun(client)
            for model in server.services.models:
                model.engine.drain()
            await server.eventually(lambda: all(it.engine.health().draining for it in server.services.models))
            assert (await answer_to(server, thread.claim(0)))["reason"] == "draining"
            client.cut()
        await is_left(server)


async def test_a_call_is_not_handed_over_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with TextModelServer().serve() as text, agent_serving(text) as server, server.call(QUERY) as client:
        await begun(client)
        await drain(server.app, 0.2, is_cut=lambda: False, log=Log("test"), target="http://127.0.0.1:9")
        deadline = (await client.event("draining")).fields
        assert deadline == {"deadline_s": 0.2}
        assert (await client.closed()).code == 1001
        await is_left(server)
    (kept,) = [vars(it)["fields"] for it in caplog.records if it.message == "call not handed over"]
    assert kept["reason"] == "an agent's conversation has no row state, and is not handed over"


@pytest.mark.parametrize(("bound", "most"), [("MAX_UNACKNOWLEDGED", 2), ("MAX_UNACKNOWLEDGED_BYTES", 40)])
async def test_a_call_with_too_much_unacknowledged_cannot_be_resumed(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(f"antiphon.serve.calls.local_resume.{bound}", most)
    async with TextModelServer(says(REPLY)).serve() as text, agent_serving(text) as server:
        async with server.call(QUERY) as client:
            thread = await begun(client)
            await client.speak(spoken([*word()[0], *SILENCE]))
            for _ in range(4):
                await client.until(lambda it: isinstance(it, moshi.Unknown))
            client.cut()
        await is_left(server)
        assert (await answer_to(server, thread.claim(0)))["reason"] == "unknown"


async def test_a_front_end_that_does_not_take_a_connection_leaves_the_call_to_the_next_one() -> None:
    def refuse(_link: Link, _descriptors: Sequence[int]) -> None:
        """As the supervisor does without that front end: the link ends."""

    async with (
        TextModelServer().serve() as text,
        agent_serving(text) as server,
        serving() as other,
        server.call(QUERY) as client,
    ):
        server.services.links = FrontEndLinks(1, refuse, other.services.config.limits)
        other.services.links = FrontEndLinks(2, refuse, other.services.config.limits)
        thread = await begun(client)
        client.cut()
        for at, worker in ((other, "w~1"), (other, "w~7"), (other, f"w~{'9' * 99}")):
            async with at.call(f"{AGAIN}&worker={worker}") as again:
                error = (await again.event("error")).fields
                assert (error["code"], (await again.closed()).code) == (1013, 1013)
                told = "the call's front end does not take the connection; try again in 1 s"
                assert error["message"] == told
        for worker in ("w", "w~", "w~2", "w~x", "w~-1", "~1~²"):  # of no other front end
            async with other.call(f"{AGAIN}&worker={worker}") as again:
                assert (await again.closed()).code == 1008  # no agent there has the name
        assert (await answer_to(server, thread.claim(0), f"{AGAIN}&worker=w~1"))["type"] == "resumed"
