"""Audio that a voice agent's caller sends at once, clears, or sends ahead of the recogniser."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.serve.calls.agent import Agent
from antiphon.serve.calls.transcriber import MAX_PENDING_SAMPLES
from tests.serve.agent_client import agent_serving, calling, is_left, messages_of, word
from tests.serve.calls.test_agent import MANUAL, TRANSCRIBED_BY_HAND
from tests.serve.harness import FRAME_SAMPLES
from tests.support.text_model import TextModelServer, says


async def test_a_recording_that_comes_at_once_is_heard() -> None:
    async with calling(says("one"), session=MANUAL) as (client, text, _):
        said, written = word()
        await client.say([0] * 200, said, silence=())  # 16 s in one event
        for _ in range(4):
            await client.say([0] * 50, silence=())
        await client.send("input_audio_buffer.commit")
        await client.send("response.create")
        assert (await client.done())["status"] == "completed"
        assert messages_of(text) == [("user", written)]


async def test_audio_that_is_cleared_is_in_no_turn() -> None:
    async with calling(says("one"), session=TRANSCRIBED_BY_HAND) as (client, text, _):
        await client.say(word()[0], silence=[0] * 8)
        await client.event("conversation.item.input_audio_transcription.delta")  # written before the clear
        await client.say(word(40)[0], silence=())  # and this may be written later
        await client.send("input_audio_buffer.clear")
        await client.event("input_audio_buffer.cleared")
        said, written = word(60)
        await client.say(said, silence=())
        await client.send("input_audio_buffer.commit")
        await client.send("response.create")
        await client.done()
        assert messages_of(text) == [("user", written)]


async def test_audio_is_heard_when_it_comes_and_waits_for_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.calls.call.TICK_S", 1000.0)
    monkeypatch.setattr("antiphon.serve.transport.liveness.LivenessRules.period_s", 1000.0)
    async with calling(session=TRANSCRIBED_BY_HAND) as (client, _, server):
        (call,) = server.services.calls
        heard = call.participant.stats
        for frames in range(1, 5):
            await client.say([0], silence=())
            least = frames + call.participant.lead_frames
            await server.eventually(lambda: heard().frames_in >= least)  # noqa: B023
            await server.eventually(lambda: not call.participant.waits_for_us)  # nothing else wakes it


async def test_audio_waits_while_too_many_events_wait_for_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.calls.agent.MAX_NEWS", 0)
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        clock = server.services.clock
        agent = Agent(server.services.agents["assistant"], clock, voice=None, new_id=str)
        await agent.open(lambda: None)
        agent.begin(clock())
        agent.put(np.zeros(FRAME_SAMPLES, np.float32), clock())
        assert agent.is_full
        assert not agent.advance(clock(), may_take=False)
        assert agent.is_full
        assert len(agent.advance(clock(), may_take=True)) == 1
        assert not agent.is_full
        agent.close()
        await is_left(server)


async def test_audio_waits_while_a_second_of_it_waits_for_the_recogniser() -> None:
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        clock = server.services.clock
        agent = Agent(server.services.agents["assistant"], clock, voice=None, new_id=str)
        await agent.open(lambda: None)
        agent.begin(clock())
        agent.put(np.zeros(MAX_PENDING_SAMPLES, np.float32), clock())
        assert not agent.is_full
        agent.put(np.zeros(1, np.float32), clock())
        assert agent.is_full
        await server.eventually(lambda: not (agent.advance(clock(), may_take=True) and agent.is_full))
        agent.close()
        await is_left(server)
