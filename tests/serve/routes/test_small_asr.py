"""The built-in recogniser and synthesiser behind a server: transcription and speech."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import aiohttp
import numpy as np
import pytest

from antiphon.arrays import FloatArray
from antiphon.audio.pcm import s16le_from_float
from antiphon.audio.stream import decode_pieces
from antiphon.audio.wav import encode_wav
from antiphon.protocol import kyutai, kyutai_tts, transcription_request
from antiphon.serve.routes import realtime
from antiphon_client.clip import default_clips
from tests.support.calm import SERVE
from tests.support.launch import free_port, running_server
from tests.support.wav import decode_wav

pytestmark = pytest.mark.product  # a model is run

SAMPLE_RATE = 24_000
ASKED = {
    "cow": "what does a cow say",
    "colour": "what colour is the sky",
    "count": "count from three to seven",
    "name": "what is your name",
    "plus": "what is two plus two",
    "snow": "what colour is snow",
    "sum": "what is five plus four",
    "tomato": "what colour is a tomato",
}
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


def questions(later_s: float = 0.0) -> list[FloatArray]:
    """Each question from its first sound on, or from ``later_s`` after it, without silence at its end."""
    sounds = []
    for name in ASKED:
        clip = next(clip for clip in default_clips() if clip.name == f"question-{name}.ogg")
        pcm = np.concatenate(list(decode_pieces(io.BytesIO(clip.read_bytes()), SAMPLE_RATE)))
        loud = np.flatnonzero(np.abs(pcm) > 0.01 * np.abs(pcm).max())
        sounds.append(pcm[loud[0] + round(later_s * SAMPLE_RATE) : loud[-1]])
    return sounds


async def test_speech_that_begins_with_the_audio_is_written_down(server: str) -> None:
    """Eight questions from their first sample, and from a quarter and half a frame after it."""
    spoken = [pcm for later_s in (0.0, 0.02, 0.04) for pcm in questions(later_s)]

    async def written(http: aiohttp.ClientSession, pcm: FloatArray) -> str:
        file = io.BytesIO(encode_wav(pcm, SAMPLE_RATE))
        async with http.post(transcription_request.PATH, data={"file": file}) as response:
            assert response.status == 200, await response.text()
            return str((await response.json())["text"])

    async with aiohttp.ClientSession(server) as http:
        texts = [await written(http, pcm) for pcm in spoken]
    assert len(texts) == 24
    assert all(texts)
    right = [text == asked for text, asked in zip(texts, 3 * list(ASKED.values()), strict=True)]
    assert sum(right) >= 20, texts


async def test_a_stream_hears_a_minute_without_a_pause_from_its_first_word(server: str) -> None:
    one_voice = ("cow", "colour", "plus", "snow")
    pcm = np.tile(np.concatenate([questions()[list(ASKED).index(name)] for name in one_voice]), 9)
    words: list[kyutai.Word] = []
    async with aiohttp.ClientSession(server) as http, http.ws_connect(kyutai.PATH) as ws:
        for second in np.array_split(pcm, 60):
            await ws.send_bytes(kyutai.encode(kyutai.Audio(second)))
        await ws.send_bytes(kyutai.encode(kyutai.Marker(1)))
        while not isinstance(told := kyutai.decode_server(await ws.receive_bytes()), kyutai.Marker):
            words += [told] if isinstance(told, kyutai.Word) else []
    assert words[0] == kyutai.Word("what", 0.0)
    starts_s = [word.start_time for word in words] + [pcm.size / SAMPLE_RATE]
    assert starts_s[-1] > 50.0
    assert max(np.diff(starts_s)) < 4.0
    assert len(words) > 0.8 * 9 * sum(len(ASKED[name].split()) for name in one_voice)


async def test_a_realtime_turn_hears_its_first_word(server: str) -> None:
    manual = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
    audio = base64.b64encode(s16le_from_float(questions()[1])).decode()
    events = (
        {"type": "session.update", "session": manual},
        {"type": "input_audio_buffer.append", "audio": audio},
        {"type": "input_audio_buffer.commit"},
    )
    url = f"{realtime.PATH}?intent=transcription"
    async with aiohttp.ClientSession(server) as http, http.ws_connect(url) as ws:
        for event in events:
            await ws.send_json(event)
        while "transcript" not in (told := await ws.receive_json()):
            assert told["type"] != "error", told
    assert told["transcript"] == ASKED["colour"]


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
