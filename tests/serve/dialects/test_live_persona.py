"""``instructions`` and ``voice`` of OpenAI Live: a persona if the model has prompts, else notices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

from antiphon.audio.wav import write_wav
from antiphon.backends.base import PrimeProgress
from antiphon.backends.torch.loading import make
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.prompt import Prompt
from antiphon.protocol import moshi
from tests.serve.harness import PATIENCE_S, Server, serving, speech
from tests.serve.live_client import live_client
from tests.serve.realtime_client import realtime_client
from tests.support.make_checkpoint import make_checkpoint
from tests.support.null_backend import NullBackend
from tests.support.null_models import DUPLEX, LM, null_checkpoint

pytestmark = pytest.mark.product

FRAMES = 12
"""Sent at once, with more behind them; nothing is dropped."""
MORE = 3
"""The model answers late, and its text comes behind its audio."""
KIND, RUDE = "You are kind and patient.", "You are a rude pirate."


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voices")
    write_wav(folder / "anna.wav", 0.2 * speech(10, seed=1), 24000)
    write_wav(folder / "bert.wav", 0.2 * speech(10, seed=2), 24000)
    return folder


@pytest.fixture(scope="module")
def persona(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A model of PersonaPlex's shape, with random weights."""
    folder = tmp_path_factory.mktemp("persona")
    return load_checkpoint(
        str(make_checkpoint(folder, kind="personaplex", dtype="float32", card=2048, context=120))
    )


@asynccontextmanager
async def persona_server(checkpoint: Checkpoint, voices: Path | None) -> AsyncIterator[Server]:
    """A server with the model, which says the likeliest thing."""
    rows = make(checkpoint, slots=2, device="cpu")
    async with serving(model=(checkpoint, rows), voices=voices) as server:
        model = server.services.models.first
        object.__setattr__(
            model, "defaults", replace(model.defaults, text_temperature=0.0, audio_temperature=0.0)
        )
        yield server


@pytest.fixture
def _no_silence_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a machine keeps a caller's audio, the model hears nothing before it."""
    monkeypatch.setattr("antiphon.audio.clock.OVERDUE_S", PATIENCE_S)


async def live_words(server: Server, **session: Any) -> str:
    """What the model says to the same audio in a live session."""
    async with live_client(server) as client:
        await client.start(model=server.services.models.first.name, **session)
        await client.speak(0.2 * speech(FRAMES + MORE, seed=3))
        while len(client.of("session.output_audio.delta")) <= FRAMES:
            await client.event("session.output_audio.delta")
        assert client.of("info") == []
    said = [it for it in client.of("session.output_transcript.delta") if it["end_ms"] <= FRAMES * 80]
    return "".join(it["delta"] for it in said)


async def chat_words(server: Server, **query: str) -> str:
    """What it says on ``/api/chat``."""
    pcm = (np.clip(0.2 * speech(FRAMES, seed=3), -1, 1) * 32767).astype("<i2") / np.float32(32768)
    words = ""
    async with server.caller(urlencode(query)) as client:
        await client.speak(pcm.astype(np.float32))
        for _ in range(FRAMES):
            before = len(client.messages)
            await client.reply()
            words += "".join(it.text for it in client.messages[before:] if isinstance(it, moshi.Text))
    return words


@pytest.mark.usefixtures("_no_silence_stands_in")
async def test_instructions_and_voice_are_the_persona(persona: Checkpoint, voices: Path) -> None:
    async with persona_server(persona, voices) as server:
        plain = await live_words(server)
        kind = await live_words(server, instructions=KIND)
        rude = await live_words(server, instructions=RUDE)
        anna = await live_words(server, instructions=KIND, audio={"output": {"voice": "anna"}})
        bert = await live_words(server, instructions=KIND, audio={"output": {"voice": {"id": "bert"}}})
        assert len({plain, kind, rude, anna, bert}) == 5
        assert kind == await live_words(server, instructions=KIND)
        # The text of the last frame may follow it.
        of_anna = await chat_words(server, text_prompt=KIND, voice_prompt="anna")
        of_rude = await chat_words(server, text_prompt=RUDE)
        assert min(len(of_anna), len(of_rude)) > FRAMES
        assert anna.startswith(of_anna)
        assert rude.startswith(of_rude)


class Noting(NullBackend):
    """A null backend that keeps the prompts it was given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.prompts: list[Prompt] = []

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        self.prompts.append(prompt)
        return super().prime(row, prompt)


@pytest.mark.parametrize(
    ("family", "prompts", "codes"),
    [
        ("personaplex", 1, ["voice_ignored"]),
        ("moshi", 0, ["instructions_ignored", "voice_ignored"]),
    ],
)
async def test_what_the_model_cannot_take_is_a_notice(
    family: str, prompts: int, codes: list[str], voices: Path
) -> None:
    backend = Noting(replace(DUPLEX, family=family, lm=replace(LM, context=60)), 2, step_ms=1.0)
    async with (
        serving(model=(null_checkpoint(backend.info.spec), backend), voices=voices) as server,
        live_client(server) as client,
    ):
        await client.start(model="null-duplex", instructions="be kind", audio={"output": {"voice": "marin"}})
        await client.audio()
    assert [event["code"] for event in client.of("info")] == codes
    assert len({prompt.key for prompt in backend.prompts}) == prompts


async def test_instructions_beyond_the_models_context_are_refused(persona: Checkpoint) -> None:
    async with persona_server(persona, None) as server, live_client(server) as client:
        name = server.services.models.first.name
        await client.send("session.start", session={"model": name, "instructions": "word " * 400})
        error = await client.error()
        assert (error["code"], error["param"]) == ("invalid_value", "session.instructions")
        assert "frames long" in error["message"]
        assert (await client.closed()).code == 1008
        await server.is_empty()


@pytest.mark.usefixtures("_no_silence_stands_in")
async def test_the_first_update_of_a_realtime_session_is_the_persona(
    persona: Checkpoint, voices: Path
) -> None:
    async with persona_server(persona, voices) as server:
        for said, voice in ((KIND, "anna"), (RUDE, "bert")):
            wanted = await chat_words(server, text_prompt=said, voice_prompt=voice)
            async with realtime_client(server) as client:
                session = await client.update(instructions=said, audio={"output": {"voice": voice}})
                assert (session["instructions"], session["audio"]["output"]["voice"]) == (said, voice)
                await client.speak(0.2 * speech(FRAMES + MORE, seed=3))
                words = ""
                while len(words) < len(wanted):
                    words += (await client.event("response.output_audio_transcript.delta"))["delta"]
                assert words[: len(wanted)] == wanted
                later = await client.update(audio={"output": {"voice": "other"}})
                assert later["audio"]["output"]["voice"] == voice  # it is frozen
            await server.is_empty()
