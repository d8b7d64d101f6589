"""A server with a voice agent of null models and a scripted text model, and its caller; for tests."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from antiphon.agent.config import AgentConfig, TextModelConfig
from antiphon.agent.text_model import TextModelTimeouts
from antiphon.backends.base import FloatArray
from tests.serve.asr_client import STT, spoken
from tests.serve.harness import FRAME_SAMPLES, Server, serving
from tests.serve.realtime_client import RealtimeClient, realtime_client
from tests.serve.tts_client import ONE_VOICE, levels, speaker
from tests.support.text_model import Answer, TextModelServer

PATH = "/v1/realtime?model=assistant"
SILENCE = [3] * 12
"""A second, which ends a turn."""
SORRY = "no"
"""What an agent of these tests says where its text model fails."""


def word(first: int = 20, letters: int = 2) -> tuple[list[int], str]:
    """Loud tokens of one word of the caller, a frame each and one before them, and how it is written."""
    tokens = [first + place for place in range(letters)]
    return [0, *tokens], "-".join(map(str, tokens))


@asynccontextmanager
async def agent_serving(
    text: TextModelServer,
    *others: TextModelServer,
    slots: int = 2,
    agent: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    """A server with the agent ``assistant``, whose text models are ``text`` and its fallbacks."""
    models = tuple(TextModelConfig(llm=it.url, llm_model="scripted") for it in (text, *others))
    config = AgentConfig(name="assistant", text_models=models, **(agent or {}))
    voice = speaker(slots, spec=ONE_VOICE)
    async with serving(spec=STT, slots=slots, beside=[voice], agents=(config,), **settings) as server:
        yield server


def patient(server: Server, **limits: float) -> None:
    """Let the agent wait for its text model within these limits; see :class:`TextModelTimeouts`."""
    server.services.agents["assistant"].text_model.patience = TextModelTimeouts(**limits)


def hum(frames: int) -> FloatArray:
    """Sound that a recogniser hears no word in: it reads a frame by its first sample."""
    sound = np.full(frames * FRAME_SAMPLES, 0.1, np.float32)
    sound[::FRAME_SAMPLES] = 0.0
    return sound


class Caller(RealtimeClient):
    """A caller of the agent."""

    async def say(self, *words: Sequence[int], silence: Sequence[int] = SILENCE) -> None:
        """Words, and the silence after them."""
        await self.speak(spoken([*(token for it in words for token in it), *silence]))

    async def speak(self, pcm: FloatArray) -> None:
        data = np.rint(pcm * 32768).astype("<i2").tobytes()
        await self.append(data)

    async def speak_briefly(self) -> None:
        """A quarter of a second that no word is in, with a pause behind it: a backchannel."""
        await self.speak(np.concatenate([hum(3), np.zeros(2 * FRAME_SAMPLES, np.float32)]))

    async def done(self) -> dict[str, Any]:
        """The next response that is over."""
        return (await self.event("response.done"))["response"]  # type: ignore[no-any-return]

    @property
    def transcript(self) -> str:
        """What the agent has said so far, in words."""
        return "".join(it["delta"] for it in self.of("response.output_audio_transcript.delta"))

    @property
    def sound(self) -> FloatArray:
        """What the agent has said so far, in sound."""
        data = b"".join(base64.b64decode(it["delta"]) for it in self.of("response.output_audio.delta"))
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)

    @property
    def letters(self) -> list[int]:
        """The letters of the words in the sound: each letter of a word says how many the word has."""
        return levels(self.sound, None)


def lettered(*words: str) -> list[int]:
    """What the speaker's sound has of these words."""
    return [len(it) for it in words for _ in it]


@asynccontextmanager
async def caller(server: Server, path: str = PATH, **session: Any) -> AsyncIterator[Caller]:
    """A caller whose session has begun, with these of its settings."""
    async with realtime_client(server, path) as client:
        caller = Caller(client.ws)
        await caller.event("session.created")
        if session:
            await caller.update(**session)
        yield caller


def messages_of(text: TextModelServer, number: int = -1) -> list[tuple[str, str]]:
    """Role and content of what a request of the text model had."""
    return [(it["role"], it.get("content") or "") for it in text.requests[number]["messages"]]


@asynccontextmanager
async def calling(
    *answers: Answer,
    agent: dict[str, Any] | None = None,
    session: Mapping[str, Any] | None = None,
    slots: int = 2,
) -> AsyncIterator[tuple[Caller, TextModelServer, Server]]:
    """A caller of an agent whose text model has these answers; in the end nothing of the call is left."""
    async with (
        TextModelServer(*answers).serve() as text,
        agent_serving(text, agent=agent, slots=slots) as server,
    ):
        async with caller(server, **(session or {})) as client:
            yield client, text, server
        await is_left(server)
        await text.is_idle.wait()


async def is_left(server: Server) -> None:
    """Wait until no call and no row of any model is left."""
    await server.is_empty()
    await server.eventually(lambda: not any(it.health().active for it in server.engines.values()))
