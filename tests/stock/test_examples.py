"""The programs of examples/, unchanged, with one server of the built-in models."""

from __future__ import annotations

import asyncio
import re
import sys
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.serve.hosting.ports import tls_context
from tests.repo.tracked import ROOT
from tests.serve.harness import Server
from tests.stock.environments import printed, python_of, run_node
from tests.stock.talkers import ANSWER, tiny

pytestmark = pytest.mark.timeout(600)
in_one_loop = pytest.mark.asyncio(loop_scope="module")

EXAMPLES = ROOT / "examples"
TLS = Path(__file__).parents[1] / "serve" / "tls"
QUESTION = "what is your name"
TALK = ("openai_live", "openai_realtime", "livekit_agent", "pipecat_agent", "websocket")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Server]:
    async with tiny("tiny-stt", "tiny-tts") as server:
        yield server


async def run_python(name: str, *arguments: str, folder: Path) -> str:
    """What an example prints, in the environment of the client it is for."""
    client = name.split("_")[0].replace("subtitles", "openai")
    ours = client in ("kyutai", "websocket")
    python = sys.executable if ours else str(await asyncio.to_thread(python_of, client))
    return (await printed(python, str(EXAMPLES / f"{name}.py"), *arguments, folder=folder)).strip()


@pytest.mark.parametrize("name", TALK)
@in_one_loop
async def test_a_question_is_answered(name: str, server: Server, tmp_path: Path) -> None:
    url = server.url("" if name == "websocket" else "/v1")
    if name in ("websocket", "pipecat_agent"):
        url = url.replace("http", "ws", 1)
    assert await run_python(name, str(EXAMPLES / "question.wav"), url, folder=tmp_path) == ANSWER.strip()
    await server.is_empty()
    if name == "openai_live":
        with wave.open(str(tmp_path / "reply.wav")) as reply:
            assert (reply.getframerate(), reply.getnchannels(), reply.getsampwidth()) == (24_000, 1, 2)
            assert reply.getnframes() > 2 * 24_000


async def test_a_question_is_answered_to_node() -> None:
    tls = tls_context(str(TLS / "test-cert.pem"), str(TLS / "test-key.pem"))
    async with tiny(tls=tls) as server:
        url = f"https://localhost:{server.port}/v1"
        question, trusted = str(EXAMPLES / "question.wav"), TLS / "test-cert.pem"
        answer = await run_node(EXAMPLES / "openai_realtime.mjs", question, url, trusted=trusted)
    assert answer.strip() == ANSWER.strip()


@in_one_loop
async def test_a_text_is_read_and_a_recording_transcribed(server: Server, tmp_path: Path) -> None:
    arguments = (str(EXAMPLES / "question.wav"), server.url("/v1"))
    assert await run_python("openai_rest", *arguments, folder=tmp_path) == QUESTION
    assert (tmp_path / "speech.mp3").stat().st_size > 4_000
    assert (await run_node(EXAMPLES / "openai_rest.mjs", *arguments, folder=tmp_path)).strip() == QUESTION


@in_one_loop
async def test_subtitles(server: Server, tmp_path: Path) -> None:
    printed = await run_python(
        "subtitles", str(EXAMPLES / "question.wav"), server.url("/v1"), folder=tmp_path
    )
    number, times, words = printed.split("\n")
    assert (number, words) == ("1", QUESTION)
    assert re.fullmatch(r"00:00:0\d,\d{3} --> 00:00:0\d,\d{3}", times)


@in_one_loop
async def test_kyutais_protocols(server: Server, tmp_path: Path) -> None:
    url = server.url("").replace("http", "ws", 1)
    heard = await run_python("kyutai_stt", str(EXAMPLES / "question.wav"), url, folder=tmp_path)
    assert [line.split()[1] for line in heard.splitlines()] == QUESTION.split()
    said = await run_python("kyutai_tts", "my name is robin", url, folder=tmp_path)
    assert [line.split()[1] for line in said.splitlines()] == ["my", "name", "is", "robin"]
    with wave.open(str(tmp_path / "speech.wav")) as speech:
        assert speech.getnframes() > 24_000


def test_every_example_is_run_and_listed() -> None:
    programs = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".mjs", ".html")}
    text = "".join(
        path.read_text() for path in (Path(__file__), *sorted((ROOT / "tests/web/browser").glob("*.test.js")))
    )
    assert [name for name in programs if f'"{name.split(".")[0]}"' not in text and name not in text] == []
    page = (EXAMPLES / "README.md").read_text()
    assert [name for name in programs if f"]({name})" not in page] == []
