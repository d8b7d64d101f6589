"""A voice agent over Unmute's protocol, with null models and a scripted text model."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import aiohttp
import numpy as np
import pytest

from antiphon.agent.values import ReplyBegan
from antiphon.audio.codec import Encoder
from antiphon.audio.codecs import make_decoder, make_encoder
from antiphon.audio.ogg import OggOpusWriter
from antiphon.audio.pcm import FloatArray
from antiphon.errors import FieldError
from antiphon.ipc.values import SessionStats
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.dialects.unmute import UnmuteDialect
from antiphon.serve.routes.routing import ELSEWHERE
from tests.serve.agent_client import agent_serving, is_left, messages_of
from tests.serve.harness import FRAME_SAMPLES, PATIENCE_S, Closed, Server, serving, speech
from tests.serve.live_client import LiveClient
from tests.support.text_model import Answer, TextModelServer, ending, piece, says

PATH = "/unmute/v1/realtime"
LONG = "one two three four five six seven eight nine ten"
SILENCE = np.zeros(12 * FRAME_SAMPLES, np.float32)
CONSTANT = {"type": "constant", "text": "Be kind.", "language": "en"}
HELLO = ("user", "Hello.")
FIELDS = {
    "session.updated": {"session"},
    "response.created": {"response"},
    "unmute.response.text.delta.ready": {"delta"},
    "response.text.done": {"text"},
    "response.audio.delta": {"delta"},
    "response.text.delta": {"delta"},
    "unmute.additional_outputs": {"args"},
    "response.audio.done": set[str](),
    "input_audio_buffer.speech_started": set[str](),
    "conversation.item.input_audio_transcription.delta": {"delta", "start_time"},
    "input_audio_buffer.speech_stopped": set[str](),
}
"""What each event of a conversation has beside its type and id, as Unmute's own backend sends it."""


@pytest.fixture(autouse=True)
def _no_silence_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers of these tests send sound at once, and then none."""
    monkeypatch.setattr("antiphon.audio.clock.OVERDUE_S", PATIENCE_S)


class Browser(LiveClient):
    """A client of Unmute."""

    encoder: Encoder | None = None

    async def update(self, **session: Any) -> None:
        await self.send("session.update", session={"allow_recording": False, **session})
        await self.event("session.updated")

    async def speak(self, pcm: FloatArray) -> None:
        """Sound, as its recorder sends it: a page of 40 ms a message."""
        self.encoder = self.encoder or make_encoder("ogg")
        for part in np.split(pcm, pcm.size // 960):
            await self.append(b"".join(self.encoder.encode(part)))

    async def append(self, data: bytes, **fields: Any) -> None:
        await self.send("input_audio_buffer.append", audio=base64.b64encode(data).decode(), **fields)

    def text(self, kind: str) -> str:
        """The deltas of a kind, one after the other."""
        return "".join(it["delta"] for it in self.of(kind))

    @property
    def sound(self) -> FloatArray:
        """What the agent has said so far: one stream of Ogg."""
        decoder = make_decoder("ogg")
        try:
            return decoder.feed(
                b"".join(base64.b64decode(it["delta"]) for it in self.of("response.audio.delta"))
            )
        finally:
            decoder.close()


@asynccontextmanager
async def browsing(
    *answers: Answer, path: str = PATH, **agent: Any
) -> AsyncIterator[tuple[Browser, TextModelServer, Server]]:
    """A client; in the end nothing of the call is left."""
    async with TextModelServer(*answers).serve() as text, agent_serving(text, agent=agent) as server:
        async with server.http.ws_connect(server.url(path, "ws"), protocols=("realtime",)) as ws:
            assert ws.protocol == "realtime"
            yield Browser(ws), text, server
        await is_left(server)
        await text.is_idle.wait()


async def test_the_agent_speaks_first_and_is_answered() -> None:
    async with browsing(says("it is one"), says("yes")) as (client, text, _):
        await client.update(instructions=CONSTANT, voice="alba")
        await client.event("response.audio.done")
        assert messages_of(text) == [("system", "Be kind."), HELLO]
        assert client.text("unmute.response.text.delta.ready") == "it is one"
        assert [it["delta"] for it in client.of("response.text.delta")] == ["it", "is", "one"]
        assert client.of("response.text.done")[0]["text"] == "it is one"
        assert client.of("response.created")[0]["response"]["voice"] == ""  # its only one has no name
        said = [{"role": "assistant", "content": "it is one"}]
        shown = [it["args"]["chat_history"] for it in client.of("unmute.additional_outputs")]
        assert shown == [[], said]  # at its begin and at its end
        assert client.sound.size >= len("itisone") * FRAME_SAMPLES  # a frame each, and silence between words
        await client.speak(np.concatenate([speech(8), SILENCE]))
        await client.event("input_audio_buffer.speech_stopped")
        await client.event("response.audio.done")
        words = [it["delta"] for it in client.of("conversation.item.input_audio_transcription.delta")]
        assert messages_of(text)[2:] == [("assistant", "it is one"), ("user", " ".join(words))]
        history = client.of("response.created")[1]["response"]["chat_history"]
        assert history == [*said, {"role": "user", "content": " ".join(words)}]
        assert [it["start_time"] for it in client.of("conversation.item.input_audio_transcription.delta")]
        fields = {it["type"]: it.keys() - {"type", "event_id"} for it in client.events}
        assert fields == FIELDS
        kinds = [it["type"] for it in client.events]
        assert kinds.index("input_audio_buffer.speech_started") < kinds.index(
            "input_audio_buffer.speech_stopped"
        )


async def test_the_callers_voice_interrupts() -> None:
    slow = Answer([*[piece(f"{it} ") for it in LONG.split()], *ending()])
    async with browsing(slow, says("yes")) as (client, text, _):
        await client.update(instructions=None)
        await client.until(lambda it: it.get("delta") == "three")
        await client.speak(np.concatenate([speech(8), SILENCE]))
        await client.event("unmute.interrupted_by_vad")
        await client.event("response.audio.done")  # of the next one: an interrupted one has none
        heard = dict(messages_of(text))["assistant"].split()
        assert heard == LONG.split()[: len(heard)]
        assert 1 <= len(heard) < len(LONG.split())
        assert len(client.of("response.created")) == 2


async def test_a_greeting_takes_the_place_of_the_first_reply() -> None:
    async with browsing(greeting="good day") as (client, text, _):
        await client.update(instructions={"type": "smalltalk", "language": "en/fr"})
        await client.event("response.audio.done")
        assert client.text("unmute.response.text.delta.ready") == "good day"
        assert text.requests == []


async def test_instructions_hold_until_others_are_named() -> None:
    said = [says("a")] * 4
    async with browsing(*said, instructions="Be brief.") as (client, text, _):
        updates: list[dict[str, Any]] = [
            {"instructions": CONSTANT},
            {},
            {"instructions": {"type": "smalltalk"}},
        ]
        for update in updates:
            await client.update(**update)
            if client.of("response.audio.done"):
                await client.speak(np.concatenate([speech(8), SILENCE]))
            await client.event("response.audio.done")
        read = [messages_of(text, number)[0] for number in range(3)]
        assert read == [("system", "Be kind."), ("system", "Be kind."), ("system", "Be brief.")]


async def test_a_client_without_a_session_update_is_answered_all_the_same() -> None:
    async with browsing(says("yes"), instructions="Be brief.") as (client, text, _):
        await client.speak(np.concatenate([speech(8), SILENCE]))
        await client.event("response.audio.done")
        assert messages_of(text)[0] == ("system", "Be brief.")
        assert HELLO not in messages_of(text)
        assert not client.of("session.updated")


async def test_a_caller_whose_audio_ends_is_heard_as_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.audio.clock.OVERDUE_S", 0.16)
    async with browsing(says("yes")) as (client, _, _):
        await client.speak(speech(8))
        await client.event("response.audio.done")


async def test_a_failed_text_model_is_told_and_the_call_continues() -> None:
    async with browsing(Answer(status=400), says("fine"), sorry="sorry now") as (client, _text, _):
        await client.update()
        error = (await client.event("error"))["error"]
        assert (error["type"], error["code"]) == ("server_error", "text_model_failed")
        assert client.text("response.text.delta") == "sorrynow"
        await client.event("response.audio.done")
        await client.speak(np.concatenate([speech(8), SILENCE]))
        await client.event("response.audio.done")
        assert client.text("response.text.delta") == "sorrynowfine"


async def test_pages_of_a_stream_before_are_passed_over_and_broken_ones_are_told() -> None:
    async with browsing(says("a"), says("b")) as (client, _text, _):
        await client.update()
        await client.event("response.audio.done")
        old = make_encoder("ogg")
        old.encode(speech(1)[:960])  # with the head of its stream
        for part in np.split(speech(10), 20):
            await client.append(b"".join(old.encode(part)))
        await client.append(b"no page")
        await client.speak(SILENCE)
        broken = OggOpusWriter(7)
        await client.append(broken.headers() + broken.page([b"\xff\0"], 960))  # a packet of no frames
        error = (await client.event("error"))["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", "audio")
        await client.send("input_audio_buffer.commit")
        assert (await client.event("error"))["error"]["code"] == "unknown_event"
        client.encoder = None
        await client.speak(np.concatenate([speech(8), SILENCE]))
        await client.event("response.audio.done")
        assert len(client.of("input_audio_buffer.speech_started")) == 1
        old.close()


@pytest.mark.parametrize(("asked", "speaks"), [("b", "b"), ("none", "a"), (None, "a")])
async def test_a_reply_names_the_voice_that_speaks(asked: str | None, speaks: str) -> None:
    update = json.dumps({"type": "session.update", "session": {"voice": asked, "allow_recording": False}})
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        agent = server.services.agents["assistant"]
        voices = replace(agent.tts, speakers=Mock(names=Mock(return_value=["a", "b"])))
        dialect = UnmuteDialect(replace(agent, tts=voices, voice="a"), voice_of=AsyncMock(return_value=None))
        dialect.feed(update)
        *_, created = map(json.loads, map(str, dialect.messages(ReplyBegan(None))))
        assert created["response"]["voice"] == speaks
        dialect.over(SessionStats(), is_lost=False)


async def test_nothing_of_a_refused_message_is_kept() -> None:
    writer = OggOpusWriter(7)
    pages = writer.headers() + b"".join(writer.page([b"\xff\0"] * 100, 960) for _ in range(40))

    def append(data: bytes) -> str:
        return json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()})

    async with TextModelServer().serve() as text, agent_serving(text) as server:
        dialect = UnmuteDialect(server.services.agents["assistant"], voice_of=AsyncMock(return_value=None))
        for _ in range(3):
            with pytest.raises(FieldError, match="audio is no Ogg/Opus"):
                dialect.feed(append(pages))
            assert not dialect.has_more
            assert dialect.feed(append(OggOpusWriter(8).headers())) == ()
            assert not dialect.has_more  # nothing waits
        dialect.over(SessionStats(), is_lost=False)


async def test_voices_and_health_are_as_its_front_end_reads_them() -> None:
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        _, body, headers = await server.get("/unmute/v1/voices")
        source: dict[str, Any] = {"source_type": "file", "path_on_server": "assistant"}
        source |= {"description": None, "description_link": None}
        assert json.loads(body) == [
            {"name": "assistant", "good": True, "instructions": None, "source": source}
        ]
        assert headers["Content-Type"].startswith("application/json")
        up = {"tts_up": True, "stt_up": True, "llm_up": True, "voice_cloning_up": False, "ok": True}
        assert json.loads((await server.get("/m/assistant/unmute/v1/health"))[1]) == up
        status, body, _ = await server.get("/m/scribe/unmute/v1/voices")
        assert (status, json.loads(body)["error"]) == (404, "no agent 'scribe' here; there is: assistant")
    async with TextModelServer().serve() as gone:
        pass
    async with agent_serving(gone) as server:
        found = json.loads((await server.get("/unmute/v1/health?model=assistant"))[1])
        assert (found["llm_up"], found["ok"]) == (False, False)


@pytest.mark.parametrize("path", ["/unmute/v1/voices", "/unmute/v1/health"])
async def test_a_server_without_an_agent_says_so(path: str) -> None:
    async with serving() as server:
        status, body, _ = await server.get(path)
        assert (status, json.loads(body)["error"]) == (404, "no agent here; there is: none")
        async with server.http.ws_connect(server.url(PATH, "ws")) as ws:
            client = Browser(ws)
            error = (await client.event("error"))["error"]
            assert (error["type"], error["code"]) == ("fatal", "model_not_found")
            assert isinstance(closed := await client.receive(), Closed)
            assert closed.code == 1008


async def test_a_key_is_asked_for_except_for_health(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("page", digest_of("a key"))) + "\n")
    async with TextModelServer().serve() as text, agent_serving(text, api_keys=str(keys)) as server:
        assert (await server.get("/unmute/v1/health"))[0] == 200
        for headers, status in (({}, 401), ({"x-api-key": "a key"}, 200)):
            async with server.http.get(server.url("/unmute/v1/voices"), headers=headers) as answer:
                assert answer.status == status
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await server.http.ws_connect(server.url(PATH, "ws"))
        async with server.http.ws_connect(server.url(PATH, "ws"), headers={"x-api-key": "a key"}) as ws:
            await Browser(ws).update()
        await is_left(server)


async def test_a_full_server_says_so() -> None:
    async with TextModelServer().serve() as text, agent_serving(text, slots=1) as server:
        async with server.http.ws_connect(server.url(PATH, "ws")) as first:
            await Browser(first).update()
            async with server.http.ws_connect(server.url("/m/assistant" + PATH, "ws")) as second:
                error = (await Browser(second).event("error"))["error"]
                assert (error["type"], error["code"]) == ("fatal", "rate_limit_exceeded")
            for path in (
                PATH,
                "/v1/realtime?model=assistant",
                "/v1/live/sessions?model=assistant",
                "/twilio?model=assistant",
                "/m/assistant/telnyx",
                "/asterisk?model=assistant",
            ):  # a proxy may have another worker to ask
                with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                    await server.http.ws_connect(server.url(path, "ws"), headers={ELSEWHERE: "1"})
        await is_left(server)
