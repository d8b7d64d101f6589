"""Idle timeouts of every protocol: only audio or speech counts as activity."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from antiphon.errors import SessionTimeoutError
from antiphon.limits import Limits
from antiphon.protocol import kyutai, kyutai_tts, moshi
from antiphon.serve.calls import exchange
from antiphon.serve.transport.liveness import LivenessRules
from tests.serve.asr_client import scribe, transcribing
from tests.serve.harness import PATIENCE_S, Closed, serving
from tests.serve.live_client import live_client
from tests.serve.realtime_client import realtime_client
from tests.serve.tts_client import listening, speaking

IMPATIENT = {"idle_timeout_s": 0.4, "quiet_timeout_s": 0.4, "liveness_timeout_s": 1.6}
"""Four tenths of a second without audio, looked at as often; pings are answered all the time."""

ROWS_BACK_S = 60.0
"""A trickle lasts a second; only one that is never ended lasts longer."""


def rules(**limits: float) -> LivenessRules:
    found = LivenessRules(Limits(**limits))  # type: ignore[arg-type]
    found.begin(0.0)
    return found


def test_it_is_seconds_of_audio_that_keep_a_session() -> None:
    talker, holder = rules(idle_timeout_s=60.0), rules(idle_timeout_s=60.0)
    for now_s in range(1, 600):
        talker.count_audio(now_s, 0.1)  # a tenth of the time
        talker.check(now_s, 0.0)
    holder.count_audio(1.0, 0.08)
    for now_s in range(10, 60, 10):
        holder.count_audio(now_s, 0.0000625)  # three bytes of sound, each ten seconds
        holder.check(now_s, 0.0)
    with pytest.raises(SessionTimeoutError, match=r"no audio for 6\d s, the limit is 60 s"):
        holder.check(62.0, 0.0)


def test_less_than_a_packet_is_no_first_audio() -> None:
    found = rules(handshake_timeout_s=15.0)
    for now_s in range(1, 15):
        found.count_audio(now_s, 0.001)
    with pytest.raises(SessionTimeoutError, match="no first audio for 16 s, the limit is 15 s"):
        found.check(16.0, 0.0)


def test_time_in_which_the_caller_waits_for_the_server_does_not_count() -> None:
    found = rules(idle_timeout_s=60.0)
    found.count_audio(0.0, 1.0)
    for now_s in range(1, 1000):
        found.excuse(now_s)
        found.check(now_s, 0.0)
    found.check(1059.0, 0.0)
    with pytest.raises(SessionTimeoutError, match="no audio for 62 s, the limit is 60 s"):
        found.check(1061.0, 0.0)


def test_announced_silence_has_a_longer_limit_of_its_own() -> None:
    found = rules(idle_timeout_s=60.0, quiet_timeout_s=600.0)
    found.count_audio(0.0, 1.0)
    found.is_quiet = True
    found.check(500.0, 0.0)
    found.is_quiet = False
    found.check(530.0, 0.0)  # it has its minute after it as well
    found.is_quiet = True  # and gains nothing by turning to and fro
    with pytest.raises(
        SessionTimeoutError, match="no audio for 601 s of announced silence, the limit is 600 s"
    ):
        found.check(631.0, 0.0)


# Sessions that do what counts for nothing, until the server ends them.

Say = Callable[[], Awaitable[Any]]


async def let_go(say: Say, receive: Callable[[], Awaitable[Any]]) -> str:
    """Trickle until the session ends; the words of its end."""
    words = ""
    async with asyncio.timeout(ROWS_BACK_S):
        while True:
            with suppress(ConnectionError):  # it may have ended, with words that are still to be read
                await say()
            try:
                async with asyncio.timeout(0.02):
                    message = await receive()
            except TimeoutError:
                continue
            if isinstance(message, Closed):
                return words or message.reason
            words = words or words_of(message)


def words_of(message: Any) -> str:
    """The words of an error, in any of the protocols."""
    if isinstance(message, moshi.Event) and message.type == "error":
        return str(message.fields["message"])
    if isinstance(message, kyutai.Error):
        return message.message
    if isinstance(message, dict) and message["type"] == "error":
        return str(message["error"]["message"])
    return ""


async def test_three_bytes_now_and_then_hold_no_row_of_a_conversation() -> None:
    async with serving(limits=IMPATIENT) as server:
        async with server.call("ext=1&format=pcm_s16le") as client:
            await client.event("ready")
            await client.send(moshi.Audio(bytes(3840)))
            words = await let_go(lambda: client.send(moshi.Audio(bytes(2))), client.receive)
        assert words.startswith("no audio for")
        await server.is_empty()


@pytest.mark.parametrize(
    "trickle",
    [kyutai.Audio(np.zeros(1, np.float32)), kyutai.Marker(1), kyutai.Audio(np.zeros(0, np.float32))],
)
async def test_three_bytes_now_and_then_hold_no_row_of_a_recogniser(trickle: kyutai.ClientMessage) -> None:
    async with transcribing(limits=IMPATIENT) as (server, _):
        async with scribe(server) as client:
            await client.until(kyutai.Ready)
            await client.send(kyutai.Audio(np.zeros(1920, np.float32)))
            words = await let_go(lambda: client.send(trickle), client.receive)
        assert words.startswith("no audio for")
        await server.is_empty()


async def test_a_listener_without_words_holds_no_row() -> None:
    async with speaking(limits=IMPATIENT) as (server, _):
        async with listening(server) as client:
            await client.send(kyutai_tts.Text("abc "))
            words = await let_go(lambda: client.send(kyutai_tts.Text(" ")), client.receive)
        assert words.startswith("no text for")
        await server.is_empty()


MUTED = {"turn_detection": None}


def impatient(*, is_quiet: bool) -> dict[str, float]:
    """The one limit of those for silence that is to be reached: a pause of the machine reaches no other."""
    return IMPATIENT | {"idle_timeout_s" if is_quiet else "quiet_timeout_s": 2 * ROWS_BACK_S}


@pytest.mark.parametrize("muted", [False, True])
async def test_events_hold_no_row_of_a_live_session(muted: bool) -> None:
    async with serving(limits=impatient(is_quiet=muted)) as server:
        async with live_client(server) as client:
            await client.start()
            if muted:
                await client.send("session.input_audio.mute")
            words = await let_go(lambda: client.append(bytes(2)), client.receive)
        assert words.startswith("no audio for")
        assert ("announced" in words) == muted
        await server.is_empty()


@pytest.mark.parametrize("detection", [True, False])
async def test_events_hold_no_row_of_a_realtime_session(detection: bool) -> None:
    async with serving(limits=impatient(is_quiet=not detection)) as server:
        async with realtime_client(server) as client:
            await client.event("session.created")
            if not detection:
                await client.update(audio={"input": MUTED})
            words = await let_go(lambda: client.append(bytes(2)), client.receive)
        assert words.startswith("no audio for")
        assert ("announced" in words) != detection
        await server.is_empty()


async def test_events_hold_no_row_of_a_transcription_session() -> None:
    async with transcribing(limits=IMPATIENT) as (server, _):
        async with realtime_client(server, "/v1/realtime?intent=transcription") as client:
            await client.event("session.created")
            words = await let_go(lambda: client.append(bytes(2)), client.receive)
        assert words.startswith("no audio for")
        await server.is_empty()


async def test_a_speech_that_is_read_too_slowly_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a POST: each piece is taken in time, and yet no tenth of real time."""
    write = web.StreamResponse.write

    async def taken_slowly(response: web.StreamResponse, data: bytes) -> None:
        await asyncio.sleep(1.0)
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", taken_slowly)
    monkeypatch.setattr(exchange, "REPLIES_A_TURN", 1)
    async with speaking(limits=IMPATIENT) as (server, _):
        async with server.http.post(server.url(kyutai_tts.PATH), json={"text": "ab " * 200}) as response:
            with pytest.raises(Exception, match=r"payload|reset|disconnected|closed"):
                async with asyncio.timeout(PATIENCE_S):
                    await response.read()
        await server.is_empty()
