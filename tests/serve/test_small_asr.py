"""The built-in recogniser and synthesiser behind a server: a recording becomes text, text becomes sound."""

from __future__ import annotations

import io
from collections.abc import Iterator

import aiohttp
import numpy as np
import pytest

from antiphon.audio.wav import decode_wav
from antiphon.backends.base import FloatArray
from antiphon.protocol import kyutai, kyutai_tts
from antiphon_client.clip import default_clips
from tests.support.calm import SERVE
from tests.support.launch import free_port, running_server

pytestmark = pytest.mark.product  # a model is run

SAMPLE_RATE = 24_000
ANSWERS = ("my name is robin", "snow is white", "a cow says moo", "after monday comes tuesday")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One process with both, on the backend of the base package."""
    port = free_port()
    models = ["--model", "tiny-stt", "--model", "tiny-tts"]
    command = [*SERVE, *models, "--backend", "onnx", "--slots", "2", "--port", str(port)]
    log = tmp_path_factory.mktemp("small") / "server.log"
    with running_server(command, port, log) as running:
        yield running.url


async def read(http: aiohttp.ClientSession, text: str) -> FloatArray:
    """The sound of a text."""
    async with http.post(kyutai_tts.PATH, json={"text": text}) as response:
        assert response.status == 200, await response.text()
        pcm, rate = decode_wav(await response.read())
    assert (pcm.shape[0], rate) == (1, SAMPLE_RATE)
    sound: FloatArray = pcm[0]
    return sound


def loudness(pcm: FloatArray) -> float:
    return float(np.sqrt(np.mean(pcm**2)))


async def test_a_recording_is_written_down(server: str) -> None:
    recording = next(clip for clip in default_clips() if clip.name == "question-colour.ogg").read_bytes()
    async with (
        aiohttp.ClientSession(server) as http,
        http.post(kyutai.PATH, data=io.BytesIO(recording)) as response,
    ):
        entries = await response.json()
    words = [entry["text"] for entry in entries if entry["type"] == "Word"]
    assert words == ["what", "colour", "is", "the", "sky"]


async def test_answers_are_read_at_the_pace_of_speech_with_the_breaks_asked_for(server: str) -> None:
    async with aiohttp.ClientSession(server) as http:
        sounds = [await read(http, text) for text in ANSWERS]
        broken = await read(http, ANSWERS[0].replace(" is ", ' <break time="1.6s"/> is '))
    for text, pcm in zip(ANSWERS, sounds, strict=True):
        assert 0.2 < pcm.size / SAMPLE_RATE / len(text.split()) < 0.8
        assert 0.03 < loudness(pcm) < 0.3
    longer_s = (broken.size - sounds[0].size) / SAMPLE_RATE
    assert 1.2 < longer_s < 2.4
    tenths = broken[: broken.size // 2400 * 2400].reshape(-1, 2400)
    assert sum(loudness(tenth) < 0.02 for tenth in tenths) >= 12
