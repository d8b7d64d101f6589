"""The programs of examples/, unchanged, with one server of the built-in models."""

from __future__ import annotations

import asyncio
import re
import runpy
import sys
import wave
from collections.abc import AsyncIterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

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


class ClientPackages(MetaPathFinder, Loader):
    """Packages of clients that are not installed here, without their content."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_client = fullname.split(".")[0] in ("livekit", "loguru", "openai", "pipecat")
        return ModuleSpec(fullname, self, is_package=True) if is_client else None

    def create_module(self, spec: ModuleSpec) -> Any:
        return MagicMock()

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it is."""


PROGRAMS = sorted(EXAMPLES.glob("*.py"))
OF_QUESTIONS = [path for path in PROGRAMS if path.stem in (*TALK, "kyutai_stt")]


@pytest.mark.parametrize(
    ("program", "words", "reason"),
    [
        *((path, [], "") for path in PROGRAMS),
        *((path, ["none.wav", "url"], "") for path in PROGRAMS if path.stem != "kyutai_tts"),
        *((path, ["question.wav"], "(expected 2, got 1)") for path in OF_QUESTIONS),
        *((path, ["empty.wav", "url"], "") for path in OF_QUESTIONS),
        *((path, ["text.wav", "url"], "file does not start with RIFF id") for path in OF_QUESTIONS),
        *((path, ["8k.wav", "url"], "8k.wav is not 24 kHz, mono, 16 bits") for path in OF_QUESTIONS),
    ],
    ids=lambda it: getattr(it, "stem", None),
)
def test_wrong_arguments_get_the_usage(
    program: Path,
    words: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.wav").touch()
    Path("text.wav").write_text("this is a text, no recording")
    with wave.open("8k.wav", "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
    monkeypatch.setattr(sys, "argv", [program.name, *words])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, ClientPackages()])
    with patch.dict(sys.modules), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(program), run_name="__main__")
    usage, *reasons = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert usage.startswith(f"usage: python {program.name} ")
    assert reason in "".join(reasons)


@pytest.mark.parametrize("name", ["openai_rest.mjs", "openai_realtime.mjs"])
@pytest.mark.parametrize("words", [[], ["none.wav", "url"]], ids=len)
async def test_wrong_arguments_get_the_usage_in_node(name: str, words: list[str]) -> None:
    usage = await run_node(EXAMPLES / name, *words, code=2)
    assert usage.startswith(f"usage: node {name} ")


def test_every_example_is_run_and_listed() -> None:
    programs = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".mjs", ".html")}
    text = "".join(
        path.read_text() for path in (Path(__file__), *sorted((ROOT / "tests/web/browser").glob("*.test.js")))
    )
    assert [name for name in programs if f'"{name.split(".")[0]}"' not in text and name not in text] == []
    page = (EXAMPLES / "README.md").read_text()
    assert [name for name in programs if f"]({name})" not in page] == []
