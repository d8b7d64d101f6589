"""``text_prompt`` and ``voice_prompt`` of ``/api/chat``, from the query to the model's row."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon.audio.wav import write_wav
from antiphon.backends.base import BackendInfo, PrimeProgress
from antiphon.log import LINE_PERIOD_S
from antiphon.models.prompt import PAUSE_S, SILENCE_CODES, Prompt
from antiphon.protocol import moshi
from antiphon.serve.hosting.app import BURST_LINES
from tests.serve.harness import Server, serving, speech
from tests.support.null_backend import NullBackend
from tests.support.null_models import DUPLEX, LM, MIMI, null_checkpoint
from tests.support.stamp import read_stamp

PERSONA = replace(DUPLEX, family="personaplex", lm=replace(LM, context=60))
PAUSE = int(PAUSE_S * MIMI.frame_rate)


class Noting(NullBackend):
    """A null backend that keeps the prompts it was given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.prompts: list[Prompt] = []

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        self.prompts.append(prompt)
        return super().prime(row, prompt)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_wav(tmp_path / "anna.wav", speech(10), 24000)
    (tmp_path / "broken.wav").write_text("nothing")
    return tmp_path


@pytest.fixture
def backend() -> Noting:
    return Noting(PERSONA, 2, step_ms=1.0)


def persona_server(backend: NullBackend, voices: Path | None) -> AbstractAsyncContextManager[Server]:
    return serving(model=(null_checkpoint(backend.info.spec), backend), voices=voices)


async def refusal(server: Server, query: str) -> tuple[int, str]:
    status, text, _ = await server.get(f"/api/chat?{query}", **UPGRADE)
    return status, text


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def test_a_text_and_a_voice_reach_the_model_before_the_first_frame(
    folder: Path, backend: Noting
) -> None:
    async with persona_server(backend, folder) as server:
        async with server.caller("text_prompt=You+are+kind&voice_prompt=anna") as client:
            await client.speak(speech(2))
            first, pcm = await client.reply()
            assert first.frame == 0
            assert read_stamp(pcm).frame == backend.prompts[0].count
        await server.is_empty()
    prompt = backend.prompts[0]
    assert prompt.voice is not None
    assert prompt.voice.shape == (10, 1920)
    words = [len(word) for word in ["<system>", "You", "are", "kind", "<system>"]]
    assert prompt.frames[:, 0].tolist() == [3] * (10 + PAUSE) + words + [3] * PAUSE
    assert prompt.frames[0, 1:9].tolist() == list(SILENCE_CODES)


async def test_a_stock_client_gets_its_handshake_once_the_prompt_is_read(backend: Noting) -> None:
    backend.rows.step_s = 0.15
    async with persona_server(backend, None) as server:
        start_s = asyncio.get_running_loop().time()
        async with server.call("text_prompt=be+kind&voice_prompt=") as client:
            assert isinstance(await client.receive(), moshi.Handshake)
            assert asyncio.get_running_loop().time() - start_s > 0.14
        await server.is_empty()
    assert len({prompt.key for prompt in backend.prompts}) == 1


async def test_a_client_that_leaves_while_its_prompt_is_read_leaves_its_row(backend: Noting) -> None:
    backend.rows.step_s = 0.3
    async with persona_server(backend, None) as server:
        async with server.call("text_prompt=be+kind") as client:
            client.cut()
        await server.is_empty()
        async with server.caller("text_prompt=be+kind") as client:
            await client.speak(speech(1))
            await client.reply()


async def test_the_same_prompt_is_computed_once(backend: Noting) -> None:
    async with persona_server(backend, None) as server:
        for _ in range(3):
            async with server.caller("text_prompt=be+kind"):
                pass
        _, metrics, _ = await server.get("/metrics")
    assert 'antiphon_prompts_total{how="computed",model="null-duplex"} 1.0' in metrics
    assert 'antiphon_prompts_total{how="copied",model="null-duplex"} 2.0' in metrics


@pytest.mark.parametrize("query", ["", "text_prompt=", "text_prompt=+++"])
async def test_without_a_prompt_there_is_none(backend: Noting, query: str) -> None:
    async with persona_server(backend, None) as server, server.caller(query):
        pass
    assert all(prompt.frames[:, 0].max() <= 3 for prompt in backend.prompts)


async def test_other_models_ignore_both(folder: Path) -> None:
    backend = Noting(DUPLEX, 2)
    async with persona_server(backend, folder) as server, server.caller("text_prompt=x&voice_prompt=nobody"):
        pass
    assert backend.prompts == []


LONG = "+".join(["word"] * 60)


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("voice_prompt=nobody", 400, "there is no voice 'nobody' here; there are: anna, broken"),
        ("voice_prompt=..%2Fanna.wav", 400, "there is no voice '../anna.wav' here; there are: anna, broken"),
        (
            f"text_prompt={LONG}",
            400,
            "this persona is 74 frames long (0 of voice, 62 of text, 12 of silence), "
            "but the model's context is 60",
        ),
        ("voice_prompt=broken", 500, "the voice 'broken' cannot be used; see the server's log"),
    ],
)
@pytest.mark.parametrize("extension", ["", "&ext=1"])
async def test_what_cannot_be_honoured_is_refused_before_the_upgrade(
    folder: Path, backend: Noting, query: str, status: int, words: str, extension: str
) -> None:
    async with persona_server(backend, folder) as server:
        assert await refusal(server, query + extension) == (status, f"{words}\n")
        assert server.engine.health().active == 0


async def test_a_broken_voice_asked_for_without_end_is_few_lines_and_its_name_is_cut(
    folder: Path, backend: Noting, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / f"{'b' * 100}.wav").write_bytes(b"nothing")
    start_s = time.monotonic()
    async with persona_server(backend, folder) as server:
        for _ in range(BURST_LINES + 20):
            status, words = await refusal(server, f"voice_prompt={'b' * 100}")
            assert (status, words) == (
                500,
                f"the voice '{'b' * 80}' cannot be used; see the server's log\n",
            )
    lines = [vars(it)["fields"] for it in caplog.records if it.getMessage() == "voice cannot be used"]
    assert BURST_LINES <= len(lines) <= BURST_LINES + (time.monotonic() - start_s) / LINE_PERIOD_S
    assert lines[0]["voice"] == "b" * 80


async def test_a_server_without_voices_says_how_to_get_them(backend: Noting) -> None:
    async with persona_server(backend, None) as server:
        wanted = "this server has no voices; it gets them with --voices DIR\n"
        assert await refusal(server, "voice_prompt=anna") == (400, wanted)


class Unprompted(Noting):
    """A backend of another name that reads no prompts."""

    @property
    def info(self) -> BackendInfo:
        return replace(super().info, can_prime=False, name="reference")


async def test_a_backend_that_reads_no_prompts_is_named() -> None:
    async with persona_server(Unprompted(PERSONA, 2), None) as server:
        status, words = await refusal(server, "text_prompt=be+kind")
    assert (status, words) == (400, "the reference backend reads no prompts; the torch backend does\n")
