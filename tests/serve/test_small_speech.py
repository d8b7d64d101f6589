"""The built-in recogniser and synthesiser behind a server: questions are written down, answers read out."""

from __future__ import annotations

import io
from collections.abc import Iterator

import aiohttp
import numpy as np
import pytest

from antiphon.audio.wav import decode_wav
from antiphon.backends.base import FloatArray
from antiphon.protocol import kyutai, kyutai_tts
from tools.launch import ANTIPHON, free_port, running_server
from tools.make_clips import FOLDER, QUESTIONS
from train.recogniser import word_errors

SAMPLE_RATE = 24_000
ANSWERS = ("my name is robin", "snow is white", "a cow says moo", "after monday comes tuesday")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One process with both, on the backend of the base package."""
    port = free_port()
    models = ["--model", "tiny-stt", "--model", "tiny-tts"]
    command = [*ANTIPHON, "serve", *models, "--backend", "onnx", "--slots", "2", "--port", str(port)]
    log = tmp_path_factory.mktemp("small") / "server.log"
    with running_server(command, port, log) as running:
        yield running.url


async def written(http: aiohttp.ClientSession, recording: bytes) -> str:
    """What the recogniser makes of a file."""
    async with http.post(kyutai.PATH, data=io.BytesIO(recording)) as response:
        assert response.status == 200, await response.text()
        return " ".join(entry["text"] for entry in await response.json() if entry["type"] == "Word")


async def read(http: aiohttp.ClientSession, text: str) -> FloatArray:
    """The sound of a text."""
    async with http.post(kyutai_tts.PATH, json={"text": text}) as response:
        assert response.status == 200, await response.text()
        pcm, rate = decode_wav(await response.read())
    assert (pcm.shape[0], rate) == (1, SAMPLE_RATE)
    return pcm[0]


def loudness(pcm: FloatArray) -> float:
    return float(np.sqrt(np.mean(pcm**2)))


async def test_questions_in_voices_it_never_heard_are_written_down(server: str) -> None:
    async with aiohttp.ClientSession(server) as http:
        clips = {name: (FOLDER / f"{name}.ogg").read_bytes() for name in QUESTIONS}
        told = {name: await written(http, clip) for name, clip in clips.items()}
    asked = {name: " ".join(line.words.lower() for line in lines) for name, lines in QUESTIONS.items()}
    wrong = sum(word_errors(asked[name], told[name]) for name in asked)
    assert wrong <= 0.2 * sum(len(words.split()) for words in asked.values()), told


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
