"""The JSON speech dialect over a WebSocket, with null models."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from antiphon.audio import g711
from antiphon.audio.g711 import Law
from antiphon.audio.pcm import FloatArray, s16le_from_float
from antiphon.audio.wav import encode_wav
from antiphon.errors import DrainingError
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.hosting.app import close_calls
from tests.serve.agent_client import SILENCE
from tests.serve.asr_client import PAUSES, sentence, spoken, transcribing
from tests.serve.harness import PATIENCE_S, Closed, Server
from tests.serve.tts_client import ONE_VOICE, SAID, SENTENCE, levels, speaking

ASR, TTS = "/api/speech/asr", "/api/speech/tts"
SETUP = {"type": "setup", "input_format": "pcm"}


class JsonClient:
    """A client; ``messages`` is everything received."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.messages: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.ws.send_json({"type": kind, **fields})

    async def speak(self, data: bytes) -> None:
        for at in range(0, len(data), 3840):
            await self.send("audio", audio=base64.b64encode(data[at : at + 3840]).decode())

    async def until(self, kind: str) -> dict[str, Any]:
        """The next message of a type."""
        while True:
            message = await self.ws.receive(PATIENCE_S)
            assert message.type is aiohttp.WSMsgType.TEXT, (message, self.messages[-3:])
            self.messages.append(json.loads(message.data))
            if self.messages[-1]["type"] == kind:
                return self.messages[-1]

    async def closed(self) -> Closed:
        while (message := await self.ws.receive(PATIENCE_S)).type is aiohttp.WSMsgType.TEXT:
            self.messages.append(json.loads(message.data))
        return Closed(message.data, str(message.extra or ""))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [it for it in self.messages if it["type"] == kind]

    def sound(self, request: str | None = None) -> FloatArray:
        data = b"".join(
            base64.b64decode(it["audio"]) for it in self.of("audio") if it.get("client_req_id") == request
        )
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)


@asynccontextmanager
async def client(server: Server, path: str, setup: dict[str, Any] | None = None) -> AsyncIterator[JsonClient]:
    async with server.http.ws_connect(server.url(path), max_msg_size=0) as ws:
        own = JsonClient(ws)
        if setup is not None:
            await ws.send_json({"type": "setup", **setup})
            await own.until("ready")
        yield own


async def test_speech_is_written_down_with_times_pauses_and_a_flush() -> None:
    tokens, texts = sentence(4)
    async with transcribing() as (server, _), client(server, ASR, SETUP) as own:
        (ready,) = own.messages
        assert (ready["model_name"], ready["sample_rate"], ready["frame_size"]) == ("scribe", 24000, 1920)
        assert ready["delay_in_frames"] == ready["delay_in_tokens"] == 6
        await own.speak(s16le_from_float(spoken(tokens)))
        await own.send("flush", flush_id="first")
        assert (await own.until("flushed"))["flush_id"] == "first"
        assert [it["text"] for it in own.of("text")] == texts
        assert [it["start_s"] for it in own.of("text")] == sorted(it["start_s"] for it in own.of("text"))
        assert [it["inactivity_prob"] for it in own.of("step")[0]["vad"]] == list(PAUSES)
        await own.send("end_of_stream")
        await own.until("end_of_stream")
        assert await own.closed() == Closed(1000, "done")
        assert len(own.of("end_text")) == 4
        await server.is_empty()


@pytest.mark.parametrize("form", ["wav", "pcm_24000", "opus", "ulaw_8000"])
async def test_formats_of_the_input(form: str) -> None:
    pcm = spoken([*sentence(3)[0], *SILENCE])
    data = {
        "wav": encode_wav(pcm, 24_000),
        "pcm_24000": s16le_from_float(pcm),
        "ulaw_8000": g711.encode(pcm[::3], Law.MU),
        "opus": b"",
    }[form]
    async with transcribing() as (server, _), client(server, ASR, {"input_format": form}) as own:
        await own.speak(data)
        await own.send("end_of_stream")
        await own.until("end_of_stream")
        if form in ("wav", "pcm_24000"):  # others change the levels that spell the words
            assert [it["text"] for it in own.of("text")] == sentence(3)[1]
        await server.is_empty()


@pytest.mark.parametrize(
    ("form", "rate"), [("pcm_24000", 24_000), ("wav", 24_000), ("pcm", 48_000), ("ulaw_8000", 8_000)]
)
async def test_a_text_is_spoken_and_the_connection_ends(form: str, rate: int) -> None:
    setup = {"output_format": form, "model_name": "default", "voice_id": "somebody's"}
    async with speaking(spec=ONE_VOICE) as (server, _), client(server, TTS, setup) as own:
        assert own.messages[0]["sample_rate"] == rate
        for word in ("a", "be", "cat"):
            await own.send("text", text=word)
        await own.send("end_of_stream")
        await own.until("end_of_stream")
        assert await own.closed() == Closed(1000, "done")
        assert [it["text"] for it in own.of("text")] == ["a", "be", "cat"]
        if form in ("pcm_24000", "wav"):
            assert levels(own.sound()[22 * (form == "wav") :], None) == SAID  # behind the header
        await server.is_empty()


async def test_requests_share_a_connection_one_after_the_other() -> None:
    kept = {"output_format": "pcm_24000", "close_ws_on_eos": False}
    async with (
        speaking(slots=1, spec=ONE_VOICE) as (server, _),
        client(server, TTS, {**kept, "client_req_id": "one"}) as own,
    ):
        await own.send("text", text=SENTENCE, client_req_id="one")
        await own.send("end_of_stream", client_req_id="one")
        # Sent at once: it waits until the first is over.
        await own.ws.send_json({"type": "setup", **kept, "client_req_id": "two"})
        await own.send("text", text="cat", client_req_id="two")
        await own.send("text", text="of the first", client_req_id="one")  # it has ended
        await own.send("end_of_stream", client_req_id="two")
        for name in ("one", "two"):
            assert (await own.until("end_of_stream"))["client_req_id"] == name
        assert levels(own.sound("one"), None) == SAID
        assert levels(own.sound("two"), None) == [3, 3, 3]
        # The next is interrupted by another: its client has forgotten it.
        await own.ws.send_json({"type": "setup", **kept, "client_req_id": "three"})
        await own.send("text", text="never heard", client_req_id="three")
        await own.ws.send_json({"type": "setup", **kept, "client_req_id": "four"})
        await own.send("text", text="be", client_req_id="four")
        await own.send("end_of_stream", client_req_id="four")
        assert (await own.until("end_of_stream"))["client_req_id"] == "four"
        assert levels(own.sound("four"), None) == [2, 2]
        await own.ws.close()
        await server.is_empty()


@pytest.mark.parametrize(
    ("path", "first", "words"),
    [
        (ASR, [{**SETUP, "input_format": "mp3"}], "the format is 'mp3', not one of pcm_8000"),
        (ASR, [{"type": "audio", "audio": ""}], "audio before setup"),
        (ASR, [SETUP, SETUP], "a second setup, a connection has one"),
        (ASR, [{**SETUP, "input_format": "wav"}, {"type": "audio", "audio": "AAAA"}], "not a WAV"),
        (TTS, [{"type": "setup", "output_format": "pcm_1"}], "the format is 'pcm_1', not one of"),
        (TTS, [{"type": "setup"}, {"type": "setup"}], "a second setup; a connection with close_ws_on_eos"),
        (TTS, [1], "a message of 1 characters is none here"),
    ],
)
async def test_an_error_is_a_message_and_its_code_the_close(path: str, first: list[Any], words: str) -> None:
    serve = transcribing() if path == ASR else speaking()
    async with serve as (server, _), client(server, path) as own:
        for message in first:
            await own.ws.send_json(message)
        closed = await own.closed()
        (error,) = own.of("error")
        assert words in error["message"]
        assert error["code"] == closed.code == 1007
        await server.is_empty()


async def test_a_full_server_says_so_after_the_setup() -> None:
    async with transcribing(slots=1) as (server, _), client(server, ASR, SETUP), client(server, ASR) as two:
        await two.ws.send_json(SETUP)
        closed = await two.closed()
        assert closed.code == two.messages[0]["code"] == 1013


async def test_a_key_is_asked_for(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("alice", digest_of("key of alice"))) + "\n")
    async with transcribing(api_keys=str(keys)) as (server, _):
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            async with client(server, ASR):
                pass
        headers = {"x-api-key": "key of alice"}
        async with server.http.ws_connect(server.url(ASR), headers=headers) as ws:
            await ws.send_json(SETUP)
            assert json.loads(await ws.receive_str())["type"] == "ready"


async def spoken_once(own: JsonClient) -> None:
    """A whole request, after which the connection stays."""
    await own.send("setup", output_format="pcm_24000", close_ws_on_eos=False)
    await own.send("text", text="cat")
    await own.send("end_of_stream")
    await own.until("end_of_stream")


async def test_each_request_of_a_connection_needs_a_valid_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("alice", digest_of("key of alice"))) + "\n")
    async with (
        speaking(spec=ONE_VOICE, api_keys=str(keys)) as (server, _),
        server.http.ws_connect(server.url(TTS), headers={"x-api-key": "key of alice"}) as ws,
    ):
        own = JsonClient(ws)
        await spoken_once(own)
        keys.write_text("")
        server.services.access.reread_keys()
        await own.send("setup", close_ws_on_eos=False)
        assert (await own.closed()).code == 1008
        assert own.messages[-1]["message"] == "the key 'alice' is no longer valid"


async def test_a_connection_between_requests_gets_the_end_of_the_server() -> None:
    async with speaking(spec=ONE_VOICE) as (server, _), client(server, TTS) as own:
        await spoken_once(own)
        await server.eventually(lambda: len(server.services.waiting) == 1)
        await close_calls(server.app, DrainingError("the server is shutting down"))
        assert await own.closed() == Closed(1001, "the server is shutting down")
        assert (own.messages[-1]["message"], own.messages[-1]["code"]) == (
            "the server is shutting down",
            1001,
        )
        assert not server.services.waiting


async def test_a_connection_between_requests_is_pinged_and_ends_without_an_answer() -> None:
    limits = {"liveness_timeout_s": 2.0}
    async with (
        speaking(spec=ONE_VOICE, limits=limits) as (server, _),
        server.http.ws_connect(server.url(TTS), autoping=False) as ws,
    ):
        own = JsonClient(ws)
        await spoken_once(own)
        for _ in range(3):  # longer than the limit
            assert (await ws.receive(PATIENCE_S)).type is aiohttp.WSMsgType.PING
            await ws.pong()
        while (message := await ws.receive(PATIENCE_S)).type is aiohttp.WSMsgType.PING:
            pass
        words = json.loads(message.data)["message"]
        assert re.fullmatch(r"no sign of life for \d+ s, the limit is 2 s", words), words
        assert (await own.closed()).code == 1008


@pytest.mark.parametrize("path", [ASR, TTS])
async def test_a_client_without_a_setup_is_closed(path: str) -> None:
    serve = transcribing if path == ASR else speaking
    async with serve(limits={"handshake_timeout_s": 0.1}) as (server, _), client(server, path) as own:
        assert (await own.closed()).code == 1008
        assert own.messages[0]["message"] == "no setup for 0.1 s"
