"""Home Assistant's services over TCP: a Wyoming client with null models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.audio.resample import resample
from antiphon.log import Log
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.hosting.front_end import drain
from tests.protocol.test_wyoming import FORM, event
from tests.serve.agent_client import SILENCE, agent_serving
from tests.serve.asr_client import STT, sentence, spoken
from tests.serve.harness import PATIENCE_S, Server, serving
from tests.serve.tcp_peer import Peer, connected, listening
from tests.serve.tts_client import ONE_VOICE, SENTENCE, levels, speaker
from tests.support.text_model import Answer, TextModelServer, piece, says

WYOMING = "wyoming://:{}"
AT_24_KHZ = {"rate": 24000, "width": 2, "channels": 1}


@dataclass
class Event:
    """One event of the server."""

    type: str
    data: dict[str, Any]
    payload: bytes


class Home:
    """Home Assistant's end of one connection."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def send(self, kind: str, data: dict[str, Any] | None = None, payload: bytes = b"") -> None:
        self.peer.writer.write(event(kind, data, payload))

    async def receive(self) -> Event:
        line = json.loads(await self.peer.reader.readline())
        data = json.loads(await self.peer.read(line["data_length"])) if "data_length" in line else {}
        return Event(line["type"], data, await self.peer.read(line.get("payload_length", 0)))

    async def until(self, kind: str) -> list[Event]:
        """All events up to the next of this type."""
        events = [await self.receive()]
        while events[-1].type != kind:
            events.append(await self.receive())
        return events

    def speak(self, pcm: np.ndarray[Any, Any], form: dict[str, Any] = AT_24_KHZ) -> None:
        data = np.rint(np.repeat(pcm, form["channels"]) * 32767).astype("<i2").tobytes()
        for at in range(0, len(data), 4000):
            self.send("audio-chunk", form, data[at : at + 4000])


@asynccontextmanager
async def home(port: int) -> AsyncIterator[Home]:
    async with connected(port) as peer:
        yield Home(peer)


@asynccontextmanager
async def at_home(**settings: Any) -> AsyncIterator[tuple[Server, int]]:
    """A server with a recogniser and a synthesiser, and its port."""
    async with (
        serving(spec=STT, beside=[speaker(2, spec=ONE_VOICE)], **settings) as server,
        listening(server, settings.pop("address", WYOMING)) as port,
    ):
        yield server, port


def closed_with(server: Server, code: str) -> float:
    """The connections that were closed with this code."""
    samples = (it for family in server.services.families.registry.collect() for it in family.samples)
    return sum(
        it.value for it in samples if it.name == "antiphon_closed_sockets_total" and it.labels["code"] == code
    )


async def test_what_is_served_is_described_from_memory() -> None:
    async with at_home() as (_, port), home(port) as client:
        client.send("describe")
        info = (await client.receive()).data
        (asr,), (tts,) = info["asr"], info["tts"]
        assert [it["name"] for it in asr["models"]] == ["scribe"]
        assert asr["supports_transcript_streaming"] is True
        assert [(it["name"], it["languages"]) for it in tts["voices"]] == [("speaker", ["en"])]
        assert tts["supports_synthesize_streaming"] is True
        assert info["handle"] == []
        client.send("ping", {"text": "still there"})
        pong = await client.receive()
        assert (pong.type, pong.data) == ("pong", {"text": "still there"})


@pytest.mark.parametrize("form", [AT_24_KHZ, {**AT_24_KHZ, "channels": 2}])
async def test_a_recording_is_written_down_word_by_word_and_the_connection_stays(
    form: dict[str, Any],
) -> None:
    tokens, texts = sentence(5)
    async with at_home() as (server, port), home(port) as client:
        for name in ("whisper", "speaker", "scribe"):  # of nothing, of a synthesiser, its own
            client.send("transcribe", {"name": name, "language": "en"})
            client.send("audio-start", form)
            client.speak(spoken(tokens), form)
            client.send("audio-stop")
            events = await client.until("transcript-stop")
            assert [it.type for it in events] == [
                "transcript-start", *["transcript-chunk"] * 5, "transcript", "transcript-stop",
            ]  # fmt: skip
            assert "".join(it.data["text"] for it in events[1:6]) == events[6].data["text"] == " ".join(texts)
            await server.eventually(lambda: not server.calls)


async def test_requests_may_be_sent_at_once() -> None:
    tokens, texts = sentence(3)
    async with at_home() as (_, port), home(port) as client:
        client.send("audio-start", AT_24_KHZ)
        client.speak(spoken(tokens))
        client.send("audio-stop")
        client.send("synthesize", {"text": "a"})
        client.send("describe")
        events = await client.until("info")
        assert [it.data["text"] for it in events if it.type == "transcript"] == [" ".join(texts)]
        assert [it.type for it in events[-3:]] == ["audio-chunk", "audio-stop", "info"]


async def test_other_rates_are_resampled() -> None:
    tone = 0.3 * np.sin(2 * np.pi * 300 * np.arange(48_000) / 24_000).astype(np.float32)
    async with at_home() as (server, port), home(port) as client:
        client.send("audio-start", FORM)
        client.speak(resample(tone, 24_000, 16_000), FORM)
        client.send("audio-stop")
        await client.until("transcript-stop")
        await server.eventually(lambda: not server.calls)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_text_is_spoken_whole_or_in_pieces(is_streamed: bool) -> None:
    async with at_home() as (server, port), home(port) as client:
        for _ in range(2):
            if is_streamed:
                client.send("synthesize-start", {"voice": {"name": "speaker"}})
                for text in ("a b", "e c", "at"):
                    client.send("synthesize-chunk", {"text": text})
                client.send("synthesize", {"text": "a be cat"})
                client.send("synthesize-stop")
            else:
                client.send("synthesize", {"text": SENTENCE, "voice": {"name": "nobody"}})
            last = "synthesize-stopped" if is_streamed else "audio-stop"
            first, *chunks = [it for it in await client.until(last) if it.type != "synthesize-stopped"]
            assert (first.type, first.data) == ("audio-start", AT_24_KHZ)
            assert chunks.pop().type == "audio-stop"
            assert {it.type for it in chunks} == {"audio-chunk"}
            pcm = np.frombuffer(b"".join(it.payload for it in chunks), "<i2").astype(np.float32) / np.float32(
                32768
            )
            assert levels(pcm, None) == [1, 2, 2, 3, 3, 3]
            await server.eventually(lambda: not server.calls)


async def test_a_text_without_words_is_silence() -> None:
    async with at_home() as (_, port), home(port) as client:
        client.send("synthesize", {"text": ""})
        assert [it.type for it in await client.until("audio-stop")] == ["audio-start", "audio-stop"]


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("audio-start", {**FORM, "rate": 5}, "audio-start: rate 5, width 2, channels 1; read are"),
        ("synthesize", {}, "the event synthesize lacks 'text'"),
        ("transcript", {"text": "hello"}, "no agent here that could answer"),
    ],
)
async def test_an_error_is_an_event_and_ends_the_connection(
    kind: str, data: dict[str, Any], words: str
) -> None:
    async with at_home() as (server, port), home(port) as client:
        client.send(kind, data)
        error = await client.receive()
        assert error.type == "error"
        assert words in error.data["text"]
        assert await client.peer.ended() == b""
        await server.is_empty()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"POST / HTTP/1.1\r\nHost: home\r\n\r\n", "an event begins with a line of JSON"),
        (b'{"type":"audio-chunk","payload_length":300000}\n', "300000 bytes of audio, the limit is 262144"),
    ],
)
@pytest.mark.parametrize("begin", [[], ["describe"], ["audio-start"]])
async def test_what_is_no_event_is_refused_in_an_event_and_in_the_log(
    data: bytes, words: str, begin: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with at_home() as (server, port), home(port) as client:
        for kind in begin:
            client.send(kind, AT_24_KHZ)
        client.peer.writer.write(data + bytes(100_000))
        error = (await client.until("error"))[-1]
        assert words in error.data["text"]
        assert await client.peer.ended() == b""
        await server.is_empty()
        client.peer.writer.close()
        await server.eventually(lambda: closed_with(server, "1007") == 1)
    assert any(words in str(record.__dict__) for record in caplog.records)


async def test_a_client_that_sends_nothing_is_closed() -> None:
    async with at_home(limits={"handshake_timeout_s": 0.1}) as (_, port), home(port) as client:
        error = await client.receive()
        assert error.data["text"] == "no event for 0.1 s"
        assert await client.peer.ended() == b""


async def test_a_client_that_leaves_gives_its_row_back() -> None:
    async with at_home(slots=1) as (server, port):
        for _ in range(3):
            async with home(port) as client:
                client.send("audio-start", AT_24_KHZ)
                client.speak(spoken([*sentence(2)[0], *SILENCE]))
                await client.until("transcript-chunk")
            await server.is_empty()


async def test_calls_count_as_those_of_the_port_s_key(tmp_path: Path) -> None:
    keys, usage = tmp_path / "keys", tmp_path / "usage"
    keys.write_text(format_key(KeyEntry("home", digest_of("key of home"), sessions=1)) + "\n")
    async with (
        serving(
            spec=STT, beside=[speaker(2, spec=ONE_VOICE)], api_keys=str(keys), usage=str(usage)
        ) as server,
        listening(server, WYOMING + "?key=home") as port,
        home(port) as one,
        home(port) as two,
    ):
        one.send("audio-start", AT_24_KHZ)
        one.speak(spoken([*sentence(2)[0], *SILENCE]))
        await one.until("transcript-chunk")
        two.send("describe")
        assert (await two.receive()).type == "info"
        two.send("synthesize", {"text": "a"})
        assert (await two.receive()).data["text"] == "the key 'home' has 1 of 1 sessions"
        one.send("audio-stop")
        await one.until("transcript-stop")
        await server.is_empty()
    (record,) = map(json.loads, usage.read_text().splitlines())
    assert (record["key"], record["model"], record["words"]) == ("home", "scribe", 2)
    assert record["seconds_in"] > 0.3


async def test_an_agent_answers_in_words(tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    async with (
        TextModelServer(says("It is **noon**."), says("Yes.")).serve() as text,
        agent_serving(text, agent={"instructions": "Be brief."}, usage=str(usage)) as server,
        listening(server, WYOMING) as port,
        home(port) as client,
    ):
        client.send("describe")
        (program,) = (await client.receive()).data["handle"]
        assert [it["name"] for it in program["models"]] == ["assistant"]
        client.send("transcript", {"text": "what time is it", "language": "en"})
        events = await client.until("handled-stop")
        assert [it.type for it in events] == [
            "handled-start",
            *["handled-chunk"] * 3,
            "handled",
            "handled-stop",
        ]
        assert events[-2].data == {"text": "It is noon."}
        client.send("transcript", {"text": "are you sure"})
        assert (await client.until("handled"))[-1].data == {"text": "Yes."}
        assert [(it["role"], it["content"]) for it in text.requests[1]["messages"]] == [
            ("system", "Be brief."), ("user", "what time is it"), ("assistant", "It is noon."),
            ("user", "are you sure"),
        ]  # fmt: skip
    records = [json.loads(line) for line in usage.read_text().splitlines()]
    assert [(it["model"], it["tokens_in"], it["tokens_out"]) for it in records] == [
        ("assistant", 11, 3), ("assistant", 11, 1),
    ]  # fmt: skip


async def test_a_text_model_that_fails_is_excused() -> None:
    async with (
        TextModelServer(usual=Answer(status=400)).serve() as text,
        agent_serving(text, agent={"sorry": "Not now."}) as server,
        listening(server, WYOMING) as port,
        home(port) as client,
    ):
        client.send("transcript", {"text": "hello"})
        answer = await client.receive()
        assert (answer.type, answer.data) == ("not-handled", {"text": "Not now."})


async def test_an_agent_writes_as_many_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.calls.text_reply.MAX_RUNNING", 1)
    async with (
        TextModelServer(Answer([piece("word ")], stays=True)).serve() as text,
        agent_serving(text) as server,
        listening(server, WYOMING) as port,
        home(port) as one,
        home(port) as two,
    ):
        one.send("transcript", {"text": "hello"})
        await one.until("handled-chunk")
        two.send("transcript", {"text": "hello"})
        error = await two.receive()
        assert (error.type, error.data["code"]) == ("error", "server_full")


async def test_a_client_that_leaves_during_an_answer_ends_it() -> None:
    endless = Answer([piece("word ")], repeats=True, pause_s=0.01)
    async with (
        TextModelServer(endless).serve() as text,
        agent_serving(text) as server,
        listening(server, WYOMING) as port,
    ):
        async with home(port) as client:
            client.send("transcript", {"text": "hello"})
            await client.until("handled-chunk")
        await asyncio.wait_for(text.is_idle.wait(), PATIENCE_S)


async def test_a_client_that_leaves_before_the_first_word_ends_the_answer() -> None:
    async with (
        TextModelServer(Answer(stays=True)).serve() as text,
        agent_serving(text) as server,
        listening(server, WYOMING) as port,
    ):
        async with home(port) as client:
            client.send("transcript", {"text": "hello"})
            await server.eventually(lambda: bool(text.requests))
        await asyncio.wait_for(text.is_idle.wait(), PATIENCE_S)


async def test_a_server_that_leaves_lets_answers_end_and_begins_none() -> None:
    async with (
        TextModelServer(Answer([piece("word ")], stays=True)).serve() as text,
        agent_serving(text) as server,
        listening(server, WYOMING) as port,
        home(port) as late,
    ):
        async with home(port) as early:
            early.send("transcript", {"text": "hello"})
            await early.until("handled-chunk")
            leaving = asyncio.create_task(drain(server.app, 600.0, is_cut=lambda: False, log=Log()))
            await server.eventually(lambda: server.services.models.first.engine.health().draining)
            late.send("transcript", {"text": "hello"})
            error = await late.receive()
            assert (error.type, error.data["text"]) == ("error", "the server is shutting down")
            assert not leaving.done()
        await asyncio.wait_for(leaving, PATIENCE_S)


async def test_an_answer_that_outlasts_a_drain_ends_with_an_error_and_so_does_an_idle_connection() -> None:
    async with (
        TextModelServer(Answer([piece("word ")], stays=True)).serve() as text,
        agent_serving(text) as server,
        listening(server, WYOMING) as port,
        home(port) as idle,
        home(port) as answered,
    ):
        idle.send("ping", {"text": ""})
        await idle.receive()
        answered.send("transcript", {"text": "hello"})
        await answered.until("handled-chunk")
        await drain(server.app, 0.05, is_cut=lambda: False, log=Log())
        for client in (idle, answered):
            error = await client.receive()
            assert (error.type, error.data["code"]) == ("error", "server_draining")
            assert error.data["text"] == "the server is shutting down; calls had 0.05 s to finish"
            assert await client.peer.reader.read() == b""
        await asyncio.wait_for(text.is_idle.wait(), PATIENCE_S)
