"""Clients of the JSON speech dialect, unchanged, with the built-in recogniser and synthesiser."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from antiphon.audio.files import read_audio
from antiphon.audio.wav import write_wav
from tests.stock.environments import run_client
from tests.support.calm import SERVE
from tests.support.launch import free_port, running_server

pytestmark = pytest.mark.timeout(600)  # pip may have to fetch a client first

QUESTION = "what is your name"
CLIP = Path(str(resources.files("antiphon_client") / "clips" / "question-name.ogg"))
WORDS = ["five", "plus", "four", "is", "nine"]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server process with a recogniser and a synthesiser."""
    port, log = free_port(), tmp_path_factory.mktemp("json") / "server.log"
    models = ("--model", "tiny-stt", "--model", "tiny-tts", "--slots", "2")
    with running_server([*SERVE, "--port", str(port), *models], port, log):
        yield f"127.0.0.1:{port}"
    assert "level=error" not in log.read_text()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A question, with a second of silence behind it."""
    path = tmp_path_factory.mktemp("question") / "question.wav"
    write_wav(path, np.pad(read_audio(CLIP, 24_000), (0, 24_000)), 24_000)
    return path


async def test_the_sdk(host: str, recording: Path) -> None:
    met = await run_client("json speech", "json_speech_clients.py", "sdk", host, str(recording))
    assert met["text"] == met["live"] == QUESTION
    assert met["flushed"] == [7]
    assert met["rate"] == 48_000
    assert met["words"] == WORDS
    assert 1.0 < met["whole_s"] < 5.0
    assert 1.0 < met["live_s"] < 5.0


async def test_pipecat_uses_one_connection_for_several_texts(host: str, recording: Path) -> None:
    met = await run_client("pipecat", "json_speech_clients.py", "pipecat", host, str(recording))
    assert met["errors"] == []
    assert met["transcripts"] == [QUESTION]
    assert 2.0 < met["bytes"] / 2 / 48_000 < 10.0


async def test_livekit(host: str, recording: Path) -> None:
    met = await run_client("livekit json speech", "json_speech_clients.py", "livekit", host, str(recording))
    assert " ".join(met["interim"]) == QUESTION
    assert 1.0 < met["seconds"] < 5.0
