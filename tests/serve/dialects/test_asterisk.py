"""Asterisk's telephone lines: AudioSocket over TCP, and its channel over a WebSocket, with null models."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest

from antiphon.agent.values import COMPLETED, ReplyOver, ReplySound
from antiphon.audio.codecs import WireFormat, make_encoder
from antiphon.audio.pcm import FloatArray, float_from_s16le, s16le_from_float
from antiphon.ipc.values import FrameReply
from antiphon.models.spec import ModelSpec
from antiphon.protocol import audiosocket as wire
from antiphon.protocol.asterisk import MediaStart
from antiphon.serve.dialects.asterisk import MOST_LATE_S, PACKET_S, AsteriskLine, AudioSocketLine
from antiphon.serve.dialects.telephone import AgentTelephoneDialect, TelephoneDialect
from tests.protocol.test_asterisk import JSON_START, START
from tests.protocol.test_audiosocket import UUID
from tests.serve.agent_client import agent_serving, lettered
from tests.serve.harness import PATIENCE_S, Closed, Server, serving
from tests.serve.live_client import parrot
from tests.serve.tcp_peer import Peer, connected, listening
from tests.serve.tts_client import levels
from tests.support.null_models import CODEC
from tests.support.text_model import TextModelServer

AUDIOSOCKET = "audiosocket://:{}"


def tone(rate: int, seconds: float) -> FloatArray:
    return 0.3 * np.sin(2 * np.pi * 400 * np.arange(round(rate * seconds)) / rate).astype(np.float32)


def pitch(pcm: FloatArray, rate: int) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(pcm)))) * rate / pcm.size


class Call:
    """Asterisk's end of one call of AudioSocket."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def say(self, pcm: FloatArray, rate: int) -> None:
        for at in range(0, pcm.size, rate // 50):
            self.peer.writer.write(wire.encode_audio(rate, s16le_from_float(pcm[at : at + rate // 50])))

    async def heard(self, rate: int) -> FloatArray:
        """The next packet."""
        head = await self.peer.read(wire.HEAD_BYTES)
        message = wire.decode(head + await self.peer.read(int.from_bytes(head[1:], "big")))
        assert isinstance(message, wire.CallerAudio)
        assert (message.rate, len(message.pcm)) == (rate, rate // 50 * 2)
        return float_from_s16le(message.pcm)


@asynccontextmanager
async def calling(port: int, name: bytes = UUID) -> AsyncIterator[Call]:
    async with connected(port) as peer:
        peer.writer.write(name)
        yield Call(peer)


@pytest.mark.parametrize("rate", wire.KINDS)
async def test_a_caller_hears_the_model_at_its_own_rate(rate: int) -> None:
    async with (
        serving(model=parrot()) as server,
        listening(server, AUDIOSOCKET + "/null-echo") as port,
        calling(port) as call,
    ):
        call.say(tone(rate, 1.2), rate)
        heard = np.concatenate([await call.heard(rate) for _ in range(40)])
        assert np.max(np.abs(heard)) > 0.25
        assert pitch(heard, rate) == pytest.approx(400, abs=3)
        call.peer.writer.close()
        await server.is_empty()


async def test_an_agent_answers_a_call() -> None:
    async with (
        TextModelServer().serve() as text,
        agent_serving(text, agent={"greeting": "hello there"}) as server,
        listening(server, AUDIOSOCKET + "/assistant") as port,
        calling(port) as call,
    ):
        call.say(np.zeros(2400, np.float32), 24000)
        heard = np.concatenate([await call.heard(24000) for _ in range(48)])
        said = levels(heard[: heard.size // 1920 * 1920], None)
        assert said == lettered("hello", "there")[: len(said)]
        assert len(said) >= 5
        call.peer.writer.write(b"\0\0\0")
        assert await call.peer.ended() is not None
        await server.is_empty()


@pytest.mark.parametrize(
    "messages",
    [
        b"\x10\x00\x02ab",  # before the UUID
        UUID + UUID,
        UUID + b"\x10\x00\x02ab" + UUID,
        UUID + b"\x10\x00\x02ab" + b"\x13\x00\x02ab",  # another rate
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_cannot_be_followed_is_hung_up(messages: bytes) -> None:
    async with serving() as server, listening(server, AUDIOSOCKET) as port, connected(port) as peer:
        peer.writer.write(messages)
        assert (await peer.ended()).endswith(wire.FAREWELL)
        await server.is_empty()


@pytest.mark.parametrize("messages", [wire.FAREWELL, UUID + wire.FAREWELL])
async def test_a_caller_that_hangs_up_first_hears_nothing(messages: bytes) -> None:
    async with serving() as server, listening(server, AUDIOSOCKET) as port, connected(port) as peer:
        peer.writer.write(messages)
        assert await peer.ended() == b""
        await server.is_empty()


async def test_keys_alone_do_not_keep_a_line() -> None:
    async with (
        serving(limits={"handshake_timeout_s": 0.3}) as server,
        listening(server, AUDIOSOCKET) as port,
        calling(port) as call,
    ):

        async def press() -> None:
            while not call.peer.writer.is_closing():
                call.peer.writer.write(b"\x03\x00\x015")
                await asyncio.sleep(0.05)

        pressing = asyncio.create_task(press())
        assert await call.peer.ended() == wire.FAREWELL
        pressing.cancel()


async def test_a_full_server_hangs_up() -> None:
    async with (
        serving(slots=1) as server,
        listening(server, AUDIOSOCKET) as port,
        calling(port) as one,
        calling(port) as two,
    ):
        one.say(tone(8000, 0.1), 8000)
        await server.eventually(lambda: bool(server.calls))
        two.say(tone(8000, 0.1), 8000)
        assert await two.peer.ended() == wire.FAREWELL


async def test_a_port_for_a_model_that_is_not_there_fails() -> None:
    async with serving() as server:
        with pytest.raises(Exception, match="no model 'none' here"):
            async with listening(server, AUDIOSOCKET + "/none"):
                pass


def test_packets_leave_each_20_ms_and_an_interruption_discards_the_rest() -> None:
    now_s, rng, sent = 0.0, random.Random(1), list[float]()
    line = AudioSocketLine(8000, lambda: now_s)
    for _ in range(50):  # frames of 80 ms, each late by up to 40 ms
        sent += [now_s] * len(line.play(bytes(1280)))
        until_s = now_s + 0.08 + rng.uniform(-0.02, 0.02)
        while line.due_s < until_s:
            now_s = line.due_s
            sent += [now_s] * len(line.due(now_s))
        now_s = until_s
    assert len(sent) >= 50 * 4 - 8
    assert all(sent[at + 5] - sent[at] >= 3 * PACKET_S for at in range(len(sent) - 5))
    line.play(bytes(3200))
    assert line.clear() == ()
    assert line.due(now_s + 1) == []
    now_s += 10 * MOST_LATE_S
    assert len(line.play(bytes(3200))) == 1  # and no burst for the time without sound


def audio_of(messages: Sequence[bytes | str]) -> bytes:
    """The audio in messages of either line, before a mark."""
    data = b""
    for message in messages:
        if isinstance(message, str):
            break
        data += message[wire.HEAD_BYTES :] if message[:1] == b"\x10" else message
    return data


def engine_of(spec: ModelSpec) -> Any:
    return SimpleNamespace(tokenizer=None, engine=SimpleNamespace(info=SimpleNamespace(spec=spec)))


@pytest.mark.parametrize("codec", ["pcmu", "pcma", "pcm_s16le", "audiosocket"])
def test_an_agent_s_reply_is_played_to_its_end(codec: str) -> None:
    is_socket = codec == "audiosocket"
    line = (
        AudioSocketLine(8000, lambda: 0.0) if is_socket else AsteriskLine(MediaStart("a", codec, 8000, 160))
    )
    agent: Any = SimpleNamespace(stt=engine_of(CODEC), tts=engine_of(CODEC))
    dialect, pcm = AgentTelephoneDialect(line, agent), tone(24000, 0.21)
    sent = audio_of([it for it in dialect.messages(ReplySound("a", pcm)) if isinstance(it, bytes)])
    sent += audio_of(dialect.messages(ReplyOver(COMPLETED)))
    while dialect.due_s < math.inf:
        sent += audio_of(dialect.due(dialect.due_s))
    (said,) = make_encoder(line.form, 24000).encode(pcm)
    part = 320 if is_socket else 160
    assert len(said) % part
    (silence,) = make_encoder(WireFormat(line.form.codec)).encode(np.zeros(320, np.float32))
    assert sent == said + silence[: -len(said) % part]


def test_a_model_s_speech_is_played_to_its_end_before_the_mark() -> None:
    line, frame_bytes = AsteriskLine(MediaStart("a", "pcmu", 8000, 160)), 640
    dialect, sent = TelephoneDialect(line, engine_of(CODEC), lambda: 0.0), list[bytes | str]()
    for number in range(20):
        pcm = tone(24000, 0.08) * (number < 3)
        sent += dialect.messages(FrameReply(number, pcm, None, (), 0, 0, 0.0, 0.0))
    assert "MARK_MEDIA said 1" in sent
    assert len(audio_of(sent)) >= 3 * frame_bytes
    assert len(audio_of(sent)) % frame_bytes == 0


class Channel:
    """Asterisk's end of a call over a WebSocket."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.commands: list[str] = []

    async def heard(self, size: int) -> bytes:
        """So many bytes of audio; commands before are kept."""
        data = b""
        async with asyncio.timeout(PATIENCE_S):
            while len(data) < size:
                message = await self.ws.receive()
                if message.type is aiohttp.WSMsgType.TEXT:
                    self.commands.append(message.data)
                else:
                    assert message.type is aiohttp.WSMsgType.BINARY
                    assert len(message.data) % 960 == 0
                    data += message.data
        return data

    async def closed(self) -> Closed:
        while (message := await self.ws.receive()).type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            if message.type is aiohttp.WSMsgType.TEXT:
                self.commands.append(message.data)
        return Closed(message.data, str(message.extra or ""))


@asynccontextmanager
async def channel(server: Server, query: str = "", start: str = START) -> AsyncIterator[Channel]:
    async with server.http.ws_connect(server.url(f"/asterisk?{query}"), protocols=("media",)) as ws:
        assert ws.protocol == "media"
        await ws.send_str(start)
        yield Channel(ws)


async def test_a_channel_hears_the_model_in_whole_frames_and_is_answered() -> None:
    async with serving(model=parrot()) as server, channel(server, "model=null-echo") as call:
        pcm = s16le_from_float(tone(24000, 1.2))
        for at in range(0, len(pcm), 960):
            await call.ws.send_bytes(pcm[at : at + 960])
        heard = float_from_s16le(await call.heard(38_400))
        assert pitch(heard, 24000) == pytest.approx(400, abs=3)
        assert call.commands[0] == "ANSWER"
        await call.ws.send_str("MEDIA_XON")
        await call.ws.send_str("MEDIA_MARK_PROCESSED said 1")
        await call.ws.close()
        await server.is_empty()


async def test_an_agent_s_sound_has_marks() -> None:
    async with (
        TextModelServer().serve() as text,
        agent_serving(text, agent={"greeting": "hello"}) as server,
        channel(server, "model=assistant") as call,
    ):
        await call.heard(2 * 3840)
        await call.heard(960)
        assert call.commands[:2] == ["ANSWER", "MARK_MEDIA 1 80"]
        await call.ws.close()
        await server.is_empty()


@pytest.mark.parametrize(
    ("query", "start", "words"),
    [
        ("", "MEDIA_XON", "the first message has to be MEDIA_START"),
        ("", START.replace("slin24", "g722"), "the format is 'g722', not one of"),
        ("model=none", JSON_START, "no model 'none' here"),
    ],
)
async def test_a_refused_call_is_hung_up(query: str, start: str, words: str) -> None:
    async with serving() as server, channel(server, query, start) as call:
        found = await call.closed()
        assert words in found.reason
        assert call.commands == ["HANGUP"]
        await server.is_empty()


async def test_a_second_start_ends_the_call(caplog: Any) -> None:
    async with serving() as server, channel(server) as call:
        await call.ws.send_str(START)
        assert await call.closed() == Closed(1007, "a second MEDIA_START, a call has one")
        assert call.commands[-1] == "HANGUP"
