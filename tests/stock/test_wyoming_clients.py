"""The client of the ``wyoming`` package and its HTTP servers, unchanged, with the built-in models."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from antiphon.audio.files import read_audio
from tests.serve.agent_client import agent_serving
from tests.serve.tcp_peer import listening
from tests.stock.environments import run_client
from tests.support.calm import SERVE
from tests.support.launch import free_port, running_server
from tests.support.text_model import TextModelServer, says

pytestmark = pytest.mark.timeout(600)  # pip may have to fetch the client first

QUESTION = "what is your name"
CLIP = Path(str(resources.files("antiphon_client") / "clips" / "question-name.ogg"))
RATE = 16_000


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A question, with silence behind it, as Home Assistant records it."""
    pcm = np.pad(read_audio(CLIP, RATE), (0, RATE // 2))
    with wave.open(str(tmp_path / "question.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(np.rint(pcm * 32767).astype("<i2").tobytes())
    return tmp_path / "question.wav"


@pytest.fixture(params=["0", "2"], ids=["one process", "two front ends"])
def tcp_port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The Wyoming port of a server process with a recogniser and a synthesiser."""
    port, tcp, log = free_port(), free_port(), tmp_path / "server.log"
    models = ("--model", "tiny-stt", "--model", "tiny-tts", "--slots", "2")
    options = ("--front-ends", request.param, "--tcp", f"wyoming://:{tcp}")
    with running_server([*SERVE, "--port", str(port), *models, *options], port, log):
        yield tcp
    assert "level=error" not in log.read_text()


async def test_speech_both_ways(tcp_port: int, recording: Path) -> None:
    met = await run_client("wyoming", "wyoming_clients.py", str(tcp_port), str(recording), "speech")
    assert met["models"] == ["tiny-stt"]
    assert met["voices"] == ["vera", "will"]
    assert met["text"] == met["chunks"] == met["http_text"] == QUESTION
    for name in ("whole_s", "pieces_s", "http_s"):
        assert 1.0 < met[name] < 5.0


async def test_an_agent_s_words(recording: Path) -> None:
    async with (
        TextModelServer(usual=says("It is noon.")).serve() as text,
        agent_serving(text) as server,
        listening(server, "wyoming://:{}") as port,
    ):
        met = await run_client("wyoming", "wyoming_clients.py", str(port), str(recording), "words")
        assert met == {"answer": "It is noon.", "chunks": 3, "http_answer": "It is noon."}
