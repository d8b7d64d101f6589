"""A server with a model of every kind, and well-behaved clients that must stay unaffected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from antiphon.agent.config import AgentConfig, TextModelConfig
from antiphon.audio.wav import encode_wav
from antiphon.backends.null import STAMP_SAMPLES
from antiphon.protocol import kyutai, kyutai_tts, moshi, speech_request, transcription_request
from tests.serve.asr_client import STT, scribe, sentence, spoken
from tests.serve.harness import Closed, Server, serving, speech
from tests.serve.tts_client import levels, listening, speaker
from tests.support.null_backend import NullBackend
from tests.support.null_models import DUPLEX, HIBIKI, null_checkpoint
from tests.support.stamp import read_stamp
from tests.support.text_model import TextModelServer
from tests.support.wav import decode_wav


@asynccontextmanager
async def everything(upload_timeout_s: float = 10.0, **settings: Any) -> AsyncIterator[Server]:
    """A server with a model of every kind, an agent and rows enough for its attackers, and ``settings``."""
    limits = {
        "connect_timeout_s": 1.0,
        "max_messages_per_s": 100_000,
        "max_upload_s": 2.0,
        "upload_timeout_s": upload_timeout_s,
    }
    async with TextModelServer().serve() as text:
        agent = AgentConfig(
            name="assistant", text_models=(TextModelConfig(llm=text.url, llm_model="scripted"),)
        )
        async with serving(
            slots=6,
            step_ms=0.2,
            also=[("null-duplex", DUPLEX), ("null-hibiki", HIBIKI)],
            beside=[(null_checkpoint(STT), NullBackend(STT, 6)), speaker(6)],
            limits=limits,
            webrtc=1,
            agents=(agent,),
            **settings,
        ) as server:
            yield server


async def talk(server: Server, query: str = "") -> Any:
    """A call of seven frames: six that come back, but for the stamp's count of sessions."""
    heard: list[Any] = []
    async with server.caller(query) as client:
        await client.speak(speech(7))
        for _ in range(6):
            stamped, pcm = await client.reply()
            stamp = read_stamp(pcm)
            told = (stamped.frame, stamp.frame, stamp.frame_hash, stamp.history)
            heard.append((*told, pcm[STAMP_SAMPLES:].tobytes()))
        heard += [(it.text,) for it in client.messages if isinstance(it, moshi.Text)]
    return heard


async def dictate(server: Server) -> Any:
    """Four words and a marker: words, their times, pauses."""
    async with scribe(server) as client:
        await client.speak(spoken(sentence(4)[0]))
        await client.send(kyutai.Marker(5))
        await client.until(kyutai.Marker)
        steps = [(step.step_idx, step.prs) for step in client.told(kyutai.Step)]
        return client.told(kyutai.Word), client.told(kyutai.EndWord), steps


async def listen(server: Server) -> Any:
    """Three words and the end: audio, and when each word is heard."""
    async with listening(server) as client:
        await client.send(kyutai_tts.Text("abc a bcdef"))
        await client.send(kyutai_tts.Eos())
        closed = await client.until(Closed)
        return closed.code, levels(client.audio), client.told(kyutai_tts.Spoken)


async def ask(server: Server, method: str, path: str, **body: Any) -> Any:
    async with server.http.request(method, server.url(path), **body) as response:
        return response.status, await response.read()


async def hear(server: Server, path: str, **body: Any) -> Any:
    """A text spoken in one answer: status and tokens."""
    status, data = await ask(server, "POST", path, json=body)
    return status, levels(decode_wav(data)[0][0])


def form() -> aiohttp.FormData:
    """Four words, to be written down with their times."""
    data = aiohttp.FormData({"response_format": "verbose_json"})
    data.add_field("file", encode_wav(spoken(sentence(4)[0]), 24_000), filename="a.wav")
    return data


NEIGHBOURS: dict[str, Callable[[Server], Coroutine[Any, Any, Any]]] = {
    "codec": talk,
    "duplex": lambda server: talk(server, "model=null-duplex&text_seed=7"),
    "recognition": dictate,
    "synthesis": listen,
    "recording": lambda server: ask(
        server, "POST", kyutai.PATH, data=encode_wav(spoken(sentence(4)[0]), 24_000)
    ),
    "text": lambda server: hear(server, kyutai_tts.PATH, text="abc a bcdef"),
    "speech": lambda server: hear(server, speech_request.PATH, input="abc a bcdef", response_format="wav"),
    "transcript": lambda server: ask(server, "POST", transcription_request.PATH, data=form()),
    "health": lambda server: ask(server, "GET", "/healthz"),
}


async def neighbourhood(server: Server) -> dict[str, Any]:
    """What everybody is given, all at once."""
    async with asyncio.TaskGroup() as group:
        visits = {name: group.create_task(visit(server)) for name, visit in NEIGHBOURS.items()}
    return {name: visit.result() for name, visit in visits.items()}


async def all_is_quiet(server: Server) -> None:
    await server.eventually(
        lambda: (
            not server.services.calls
            and all(
                it.engine.health().active == 0 and it.engine.health().is_healthy
                for it in server.services.models
            )
        )
    )


def assert_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """No line is an error: what clients do is none of the server's."""
    faults = [it for it in caplog.records if it.levelno >= logging.ERROR]
    assert [it.exc_info[1] if it.exc_info else it.getMessage() for it in faults] == []
