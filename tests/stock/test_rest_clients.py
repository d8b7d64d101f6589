"""Stock clients of OpenAI's REST speech, unchanged, with the built-in recogniser and synthesiser."""

from __future__ import annotations

import base64
import io
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from antiphon.audio.stream import decode_pieces
from antiphon.backends.onnx.loading import make
from antiphon.models.catalog import load_checkpoint
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from tests.serve.harness import serving
from tests.stock.environments import run_client, run_node_client
from tests.support.calm import SERVE
from tests.support.launch import free_port, running_server

pytestmark = pytest.mark.timeout(600)  # pip and npm may have to fetch a client first

QUESTION = "what is your name"
CLIP = Path(str(resources.files("antiphon_client") / "clips" / "question-name.ogg"))
TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


@pytest.fixture(scope="module", params=["1", "2"], ids=["one front end", "two front ends"])
def base_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server process with a recogniser and a synthesiser."""
    port, log = free_port(), tmp_path_factory.mktemp("rest") / "server.log"
    models = ("--model", "tiny-stt", "--model", "tiny-tts", "--slots", "2")
    front_ends = ("--front-ends", request.param) if request.param != "1" else ()
    with running_server([*SERVE, "--port", str(port), *models, *front_ends], port, log):
        yield f"http://127.0.0.1:{port}/v1"
    assert "level=error" not in log.read_text()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A question, in a folder that the client may write to."""
    return Path(shutil.copy(CLIP, tmp_path / CLIP.name))


def seconds_of(path: str) -> float:
    """How long a file is that FFmpeg can read."""
    pieces = decode_pieces(io.BytesIO(Path(path).read_bytes()), 24_000)
    return sum(piece.size for piece in pieces) / 24_000


async def test_the_python_package(base_url: str, recording: Path) -> None:
    met = await run_client("openai", "openai_rest.py", base_url, str(recording))
    assert met["models"] == ["tiny-stt", "tiny-tts"]
    assert (met["model"]["id"], met["model"]["object"]) == ("tiny-tts", "model")
    assert met["voices"]["object"] == "list"
    check_speech(met["speech"])
    check_transcripts(met["transcripts"])


def check_speech(met: dict[str, Any]) -> None:
    for name, content_type in TYPES.items():
        assert met[name]["type"] == content_type
        if name == "pcm":
            assert Path(met[name]["path"]).stat().st_size % (1920 * 2) == 0
        else:
            assert 0.5 < seconds_of(met[name]["path"]) < 5
    assert met["slow"]["ignored"] == "instructions"
    assert met["slow"]["bytes"] > 2 * 24_000 * 2
    *deltas, done = met["events"]
    audio = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    frames = len(audio) // (1920 * 2)
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 4, "output_tokens": frames, "total_tokens": 4 + frames},
    }
    assert len(deltas) == frames, "an event a frame"


def check_transcripts(met: dict[str, Any]) -> None:
    assert met["json"]["text"] == QUESTION
    assert met["json"]["usage"]["type"] == "duration"
    assert met["text"] == f"{QUESTION}\n"
    assert met["srt"].startswith("1\n00:00:00,")
    assert met["srt"].endswith(f"\n{QUESTION}\n")
    assert met["vtt"].startswith("WEBVTT\n\n00:00:00.")
    verbose = met["verbose_json"]
    assert (verbose["text"], verbose["language"], verbose["task"]) == (QUESTION, "en", "transcribe")
    assert [word["word"] for word in verbose["words"]] == QUESTION.split()
    assert all(word["start"] <= word["end"] <= verbose["duration"] + 0.5 for word in verbose["words"])
    assert [segment["text"] for segment in verbose["segments"]] == [QUESTION]
    *deltas, done = met["stream"]
    assert {event["type"] for event in deltas} == {"transcript.text.delta"}
    assert "".join(event["delta"] for event in deltas) == QUESTION == done["text"]
    assert done["type"] == "transcript.text.done"


async def test_the_npm_package(base_url: str, recording: Path) -> None:
    met = await run_node_client("openai_rest.mjs", base_url, str(recording))
    assert met["models"] == ["tiny-stt", "tiny-tts"]
    assert met["model"]["id"] == "tiny-tts"
    assert met["type"] == "audio/mpeg"
    assert len(met["sizes"]) > 3, "it comes as it is spoken"
    assert met["transcript"]["text"] == met["verbose"]["text"] == QUESTION
    assert [word["word"] for word in met["verbose"]["words"]] == QUESTION.split()
    assert met["events"][-1]["text"] == QUESTION
    refused = {"name": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"}
    assert met["refused"] == refused


REFUSALS = {
    "wrong key": "AuthenticationError 401 invalid_api_key, None: this API key is not known here",
    "unknown model": (
        "NotFoundError 404 model_not_found, model: no model 'tts-1' here; there is: tiny-tts (tts); "
        "to serve it under this name: --alias tts-1=tiny-tts"
    ),
    "model of another kind": (
        "NotFoundError 404 model_not_found, model: model 'tiny-tts' is a tts model, and this is for stt; "
        "there is: tiny-stt (stt)"
    ),
    "model that is not there": (
        "NotFoundError 404 model_not_found, model: no model 'gpt-9' here; "
        "there is: tiny-stt (stt), tiny-tts (tts); to serve it under this name: --alias gpt-9=tiny-stt"
    ),
    "no words": "BadRequestError 400 invalid_value, input: input has no words",
    "no word that can be said": (
        "BadRequestError 400 invalid_value, input: this model cannot speak any word of this text: '😀'"
    ),
    "speed": "BadRequestError 400 invalid_value, speed: speed is 5, 0.25 to 4 are allowed",
    "format": (
        "BadRequestError 400 invalid_value, response_format: response_format is 'm4b', "
        "not one of mp3, opus, aac, flac, wav, pcm"
    ),
    "no recording": "BadRequestError 400 invalid_value, file: this is no recording that can be read: "
    "WAV (RF64, W64), AIFF, CAF, FLAC, MP3, Ogg, MP4, WebM or AAC; it begins b'RIFF'",
    "rate": (
        "BadRequestError 400 invalid_value, file: audio at 1 Hz is not supported; there is: 4000 to 384000 Hz"
    ),
    "speakers": (
        "BadRequestError 400 invalid_value, response_format: response_format is 'diarized_json', "
        "not one of json, text, srt, verbose_json, vtt"
    ),
    "words without times": (
        "BadRequestError 400 invalid_value, timestamp_granularities: timestamp_granularities "
        "needs response_format verbose_json, got json"
    ),
    "translation": ("NotFoundError 404 not_found, None: there is no route for POST /v1/audio/translations"),
    "too large": (
        "APIStatusError 413 request_too_large, None: "
        "a recording of more bytes than it may have, the limit is 200000"
    ),
}


async def test_what_its_user_sees_of_a_refusal(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("alice", digest_of("key-of-alice"))) + "\n")
    checkpoints = [load_checkpoint(name) for name in ("tiny-stt", "tiny-tts")]
    made = [(files, make(files, slots=1, threads=1)) for files in checkpoints]
    limits = {"max_upload_bytes": 200_000}
    async with serving(model=made[0], beside=made[1:], api_keys=str(keys), limits=limits) as server:
        met = await run_client("openai", "openai_rest_refusals.py", server.url("/v1"), "key-of-alice")
    assert met == REFUSALS
