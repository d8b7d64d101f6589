"""Resumed sessions of OpenAI Live with a voice agent."""

from __future__ import annotations

from typing import Any

from antiphon.protocol import resume
from antiphon.serve.routes.routing import ELSEWHERE
from tests.serve.agent_client import SILENCE, agent_serving, is_left, messages_of, word
from tests.serve.asr_client import spoken
from tests.serve.harness import cut
from tests.serve.live_client import PATH, LiveClient, live_client, watchers_of
from tests.support.text_model import TextModelServer, says

REPLY = "it is one"


class LiveThread(LiveClient):
    """A client of Live that keeps what it needs to resume."""

    token, seq, frame = "", -1, -1

    async def receive(self) -> Any:
        event = await super().receive()
        if isinstance(event, dict):
            self.token = event.get("resume", {}).get("token", self.token)
            self.seq, self.frame = event.get("seq", self.seq), event.get("frame", self.frame)
        return event

    async def resume(self, before: LiveThread, **fields: Any) -> dict[str, Any]:
        place = {"token": before.token, "seq": before.seq, "frame": before.frame, "input_frame": 0}
        self.seq, self.frame = before.seq, before.frame
        await self.send("session.resume", session={"model": "assistant"}, **{**place, **fields})
        return await self.event("session.resumed")


async def test_watchers_of_a_session_stay_when_it_is_resumed_and_see_nothing_of_it() -> None:
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        async with live_client(server, f"{PATH}?resume=1") as ws:
            first = LiveThread(ws.ws)
            session = await first.start(model="assistant")
            async with (
                live_client(server, f"{PATH}/{session['id']}/attach") as watcher,
                live_client(server, f"{PATH}?resume=again") as again,
            ):
                await server.eventually(lambda: bool(watchers_of(server.calls[0])))
                second = LiveThread(again.ws)
                await second.resume(first)
                assert (await first.error())["code"] == "session_replaced"
                await second.send("session.close")
                await watcher.event("session.closed")
                assert "error" not in [it["type"] for it in watcher.events]
        await is_left(server)


async def test_a_live_session_continues_over_another_connection() -> None:
    async with (
        TextModelServer(says(REPLY), says("two")).serve() as text,
        agent_serving(text, slots=1) as server,
    ):
        async with live_client(server, f"{PATH}?resume=1") as ws:
            first = LiveThread(ws.ws)
            session = await first.start(model="assistant", instructions="Be kind.")
            said, written = word()
            await first.speak(spoken([*said, *SILENCE]))
            await first.until(lambda it: it.get("delta") == " it")
            cut(first.ws)
        # Behind a proxy too: its rows are its own.
        async with live_client(server, f"{PATH}?resume=again", **{ELSEWHERE: "1"}) as ws:
            second = LiveThread(ws.ws)
            again = await second.resume(first)
            assert again["session"]["id"] == session["id"]
            assert (again["input_frame"], again["missed_frames"]) == (len(said) + len(SILENCE), 0)
            await second.until(lambda it: it.get("delta") == " one")
            numbers = [it["seq"] for it in (*first.events, *second.events) if "seq" in it]
            assert numbers == list(range(len(numbers)))
            frames = [it["frame"] for it in (*first.events, *second.events) if "frame" in it]
            assert frames == list(range(frames[-1] + 1))
            await server.eventually(lambda: server.calls[0].participant.is_idle)
            await second.speak(spoken([*word(40)[0], *SILENCE]))
            await second.until(lambda it: it.get("delta") == " two")
            await second.send("session.acknowledge", seq=second.seq)
            await second.send("session.close")
            await second.event("session.closed")
        await is_left(server)
    assert messages_of(text)[:3] == [("system", "Be kind."), ("user", written), ("assistant", REPLY)]


async def test_a_token_of_a_live_session_is_unknown_to_other_protocols() -> None:
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        async with live_client(server, f"{PATH}?resume=1") as ws:
            live = LiveThread(ws.ws)
            await live.start(model="assistant")
            claim = resume.encode_claim(resume.Claim(resume.token_of(live.token), -1, -1, 0))
            async with server.call("ext=1&format=pcm_f32le&model=assistant&resume=again") as chat:
                await chat.ws.send_bytes(claim)
                assert (await chat.event("resume_failed")).fields["reason"] == "unknown"
            async with live_client(server, f"{PATH}?resume=again") as other:
                await other.send("session.resume", token="A" * 22, session={"model": "assistant"})
                assert (await other.error())["code"] == "session_not_resumable"
        await is_left(server)
