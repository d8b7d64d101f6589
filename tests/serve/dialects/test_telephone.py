"""Telephone calls: Twilio's and Telnyx's messages with the null backend."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import numpy as np
import pytest

from antiphon.audio import g711
from antiphon.audio.codecs import WireFormat, make_decoder
from antiphon.audio.g711 import Law
from antiphon.audio.pcm import FloatArray
from antiphon.ipc.values import FrameReply
from antiphon.protocol import media_streams as wire
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.access.twilio_signature import HEADER, signature
from antiphon.serve.calls.values import PushAudio
from antiphon.serve.dialects.media_stream import Chunks, MediaStreamLine
from antiphon.serve.dialects.telephone import MOST_AHEAD_S, TelephoneDialect
from antiphon.serve.hosting.served import ServedModel
from tests.protocol.test_media_streams import TELNYX, TWILIO
from tests.serve.harness import FRAME_SAMPLES, Closed, Server, serving, speech
from tests.serve.live_client import parrot
from tests.support.null_models import CODEC

PACKET_SAMPLES = 160
PATIENT = aiohttp.ClientWSTimeout(ws_receive=5, ws_close=5)
FRAME_BYTES = FRAME_SAMPLES // 3


class Line:
    """The telephone company's end of one call."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, start: dict[str, Any]) -> None:
        self.ws, self._start, self._packets = ws, start, 0

    async def begin(self, **parameters: str) -> None:
        await self.ws.send_json({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        name = "customParameters" if "streamSid" in self._start else "custom_parameters"
        await self.ws.send_json({**self._start, "start": {**self._start["start"], name: parameters}})

    async def speak(self, pcm: FloatArray, law: Law = Law.MU, packet: int = PACKET_SAMPLES) -> None:
        """What is said, 8 kHz, in packets of so many samples."""
        for at in range(0, pcm.size, packet):
            self._packets += 1
            payload = base64.b64encode(g711.encode(pcm[at : at + packet], law)).decode()
            media = {"track": "inbound", "chunk": str(self._packets), "payload": payload}
            await self.ws.send_json({"event": "media", "media": media})

    async def event(self, kind: str) -> dict[str, Any]:
        while (event := json.loads(await self.ws.receive_str())).get("event") != kind:
            assert event["event"] == "media"
        return event  # type: ignore[no-any-return]

    async def heard(self, law: Law = Law.MU) -> FloatArray:
        """One frame of the model, 8 kHz."""
        event = await self.event("media")
        return g711.decode(base64.b64decode(event["media"]["payload"]), law)

    async def closed(self) -> Closed:
        while (message := await self.ws.receive()).type is aiohttp.WSMsgType.TEXT:
            pass
        assert message.type is aiohttp.WSMsgType.CLOSE
        return Closed(message.data, str(message.extra or ""))


@asynccontextmanager
async def line(
    server: Server,
    path: str = "/twilio",
    start: dict[str, Any] = TWILIO,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Line]:
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(server.url(path), headers=headers, timeout=PATIENT) as ws,
    ):
        yield Line(ws, start)


def thirds(pcm: FloatArray) -> FloatArray:
    return pcm[::3].astype(np.float32)


@pytest.mark.parametrize(("path", "start", "law"), [("/twilio", TWILIO, Law.MU), ("/telnyx", TELNYX, Law.A)])
async def test_a_caller_hears_the_model_until_it_hangs_up(path: str, start: dict[str, Any], law: Law) -> None:
    async with serving(model=parrot()) as server, line(server, path, start) as caller:
        await caller.begin(model="null-echo")
        tone = 0.3 * np.sin(2 * np.pi * 400 * np.arange(12 * FRAME_BYTES) / 8000).astype(np.float32)
        await caller.speak(tone, law)
        heard = np.concatenate([await caller.heard(law) for _ in range(10)])
        loud = heard[np.abs(heard) > 0.15]
        assert loud.size > 0.3 * heard.size  # a sine of 0.3 is above half of it for two thirds of the time
        spectrum = np.abs(np.fft.rfft(heard))
        assert float(np.argmax(spectrum)) * 8000 / heard.size == pytest.approx(400, abs=3)
        await caller.ws.send_json({"event": "stop"})
        assert await caller.closed() == Closed(1000, "done")
        await server.is_empty()


async def test_the_key_comes_with_the_start(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("alice", digest_of("key of alice"), sessions=1)) + "\n")
    async with serving(api_keys=str(keys), slots=4) as server:
        for parameters in ({}, {"key": "key of bob"}):
            async with line(server) as stranger:
                await stranger.begin(**parameters)
                assert await stranger.closed() == Closed(1008, "the key is missing, or not known here")
        async with line(server) as caller, line(server) as second:
            await caller.begin(key="key of alice")
            await caller.speak(thirds(speech(2)))
            await caller.heard()
            await second.begin(key="key of alice")
            assert await second.closed() == Closed(1008, "the key 'alice' has 1 of 1 sessions")
        async with line(server, headers={"x-api-key": "key of alice"}) as caller:
            await caller.begin()
            await caller.speak(thirds(speech(2)))
            await caller.heard()
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            async with line(server, headers={"x-api-key": "key of bob"}):
                pass
        await server.is_empty()


async def test_calls_without_the_signature_are_refused_where_the_server_has_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("12345678901234567890123456789012\n")
    async with serving(twilio_token=str(token)) as server:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            async with line(server):
                pass
        url = server.url("/twilio", "wss")
        signed = signature(url, token.read_text().strip()).decode()
        async with line(server, headers={HEADER: signed}) as caller:
            await caller.begin()
            await caller.speak(thirds(speech(2)))
            await caller.heard()


@pytest.mark.parametrize(
    ("message", "closed"),
    [
        ("stop", Closed(1007, "the first event after connected has to be start")),
        ("none", Closed(1008, "no model 'none' here; there is: null-echo (codec)")),
        ("binary", Closed(1007, "a binary message of 3 bytes, media streams are JSON text")),
    ],
)
async def test_what_cannot_be_served_is_a_code_and_a_reason(message: str, closed: Closed) -> None:
    async with serving() as server, line(server) as caller:
        match message:
            case "stop":
                await caller.ws.send_json({"event": "stop"})
            case "none":
                await caller.begin(model="none")
            case "binary":
                await caller.begin()
                await caller.ws.send_bytes(b"abc")
        found = await caller.closed()
        assert found.code == closed.code
        assert closed.reason in found.reason
        await server.is_empty()


class Telephone:
    """What plays what a dialect sends, on a clock of the test."""

    def __init__(self) -> None:
        self.now_s = 0.0
        model = SimpleNamespace(tokenizer=None, engine=SimpleNamespace(info=SimpleNamespace(spec=CODEC)))
        start = wire.decode(json.dumps(TWILIO))
        assert isinstance(start, wire.StreamStart)
        self.dialect = TelephoneDialect(
            MediaStreamLine(start), cast("ServedModel", model), lambda: self.now_s
        )
        self.waits_s = 0.0
        self.marks: list[str] = []

    def say(self, *, is_loud: bool) -> float:
        """Let the model say a frame; returns seconds of sound that were sent."""
        pcm = np.full(FRAME_SAMPLES, 0.3 * is_loud, np.float32)
        pcm[::2] *= -1
        sent_s = 0.0
        for message in self.dialect.messages(FrameReply(0, pcm, None, (), 0, 0, self.now_s, self.now_s)):
            event = json.loads(message)
            if event["event"] == "media":
                sent_s += len(base64.b64decode(event["media"]["payload"])) / 8000
            else:
                self.marks.append(event["mark"]["name"])
        self.waits_s += sent_s
        return sent_s

    def play(self, seconds: float) -> None:
        self.now_s += seconds
        self.waits_s = max(0.0, self.waits_s - seconds)


def test_a_burst_delays_nothing_after_the_next_pause() -> None:
    telephone = Telephone()
    for _ in range(38):  # three seconds at once, after a gap of the network
        telephone.say(is_loud=True)
    assert telephone.waits_s == pytest.approx(38 * 0.08, abs=0.01)  # what a resampler holds back
    for _ in range(38):
        telephone.say(is_loud=False)
        telephone.play(0.08)
    assert telephone.waits_s <= MOST_AHEAD_S + 0.08
    telephone.say(is_loud=True)
    assert telephone.waits_s <= MOST_AHEAD_S + 0.16


def test_nothing_said_is_left_out_and_nothing_runs_dry_in_step() -> None:
    telephone, rng = Telephone(), random.Random(1)
    for _ in range(200):
        is_loud = rng.random() < 0.5
        sent_s = telephone.say(is_loud=is_loud)
        assert sent_s or not is_loud
        telephone.play(0.08)
    assert telephone.marks == [f"said {n + 1}" for n in range(len(telephone.marks))]
    assert telephone.marks


def test_a_mark_that_comes_back_says_what_was_played() -> None:
    telephone = Telephone()
    for _ in range(5):
        telephone.say(is_loud=True)
    while not telephone.marks:
        telephone.say(is_loud=False)
    # Our clock says that 400 ms and more wait; the telephone, which is ahead, has played them.
    telephone.dialect.feed(json.dumps({"event": "mark", "mark": {"name": telephone.marks[-1]}}))
    assert telephone.say(is_loud=False) > 0
    telephone.dialect.feed(json.dumps({"event": "mark", "mark": {"name": "another"}}))


def test_an_interruption_clears_what_waits() -> None:
    telephone = Telephone()
    for _ in range(20):
        telephone.say(is_loud=True)
    assert [json.loads(it) for it in telephone.dialect.interrupted(3)] == [
        {"event": "clear", "streamSid": "MZ1"}
    ]
    assert telephone.say(is_loud=True) == pytest.approx(0.08, abs=0.001)


@pytest.mark.parametrize("seed", range(5))
def test_chunks_that_come_out_of_order_are_put_in_order(seed: int) -> None:
    rng = random.Random(seed)
    order = sorted(range(2, 200), key=lambda n: n + rng.uniform(0, 4))
    chunks = Chunks()
    heard = b"".join(chunks.put(wire.Media(bytes((n,)), n)) for n in [1, *order])
    assert list(heard) == list(range(1, len(heard) + 1))
    assert len(heard) >= 199 - 5


def test_a_chunk_that_is_lost_holds_up_five_and_is_left_out() -> None:
    chunks = Chunks()
    heard = [chunks.put(wire.Media(bytes((n,)), n)) for n in range(1, 30) if n != 10]
    assert max(later - earlier for earlier, later in pairwise(b"".join(heard))) == 2
    assert b"".join(heard) == bytes(n for n in range(1, 30) if n != 10)
    assert chunks.put(wire.Media(b"\x0a", 10)) == b""


def test_each_packet_is_heard_at_once() -> None:
    telephone = Telephone()
    payload = base64.b64encode(bytes(PACKET_SAMPLES)).decode()
    actions = telephone.dialect.feed(json.dumps({"event": "media", "media": {"payload": payload}}))
    (push,) = actions
    assert isinstance(push, PushAudio)
    assert push.seconds == pytest.approx(0.02, abs=0.0065)  # the resampler keeps up to 6.4 ms
    assert not telephone.dialect.has_more


def test_a_long_message_is_heard_in_steps() -> None:
    telephone, pcm = Telephone(), 0.5 * np.sin(np.arange(48_000) / 7).astype(np.float32)
    payload = base64.b64encode(g711.encode(pcm, Law.MU)).decode()
    message, heard = json.dumps({"event": "media", "media": {"payload": payload}}), list[FloatArray]()
    while not heard or telephone.dialect.has_more:
        (push,) = telephone.dialect.feed("" if heard else message)
        assert isinstance(push, PushAudio)
        assert push.seconds <= 0.128
        heard.append(push.pcm)
    whole = make_decoder(WireFormat("pcmu", 8000), CODEC.sample_rate)
    assert np.array_equal(np.concatenate(heard), whole.feed(g711.encode(pcm, Law.MU)))
