"""Reimplementations of Kyutai's clients with a server in a separate process.

Their flows are ``scripts/stt_from_file_rust_server.py`` and ``scripts/tts_rust_streaming.py`` of
kyutai-labs/delayed-streams-modeling. As there, ``websockets`` and ``msgpack`` are all that speaks: nothing
here reads or writes a message with our own protocol.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

import msgpack
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect

from antiphon.backends.base import FloatArray
from tests.backends.torch.test_tts import TEXTS, make_speaker, said_by_upstream, upstream
from tests.serve.process import REPOSITORY
from tests.serve.upstream_asr import DELAY, Upstream, assert_same, recording
from tests.support.calm import SERVE
from tests.support.make_checkpoint import make_checkpoint

pytestmark = pytest.mark.product  # a model is run

SAMPLE_RATE, FRAME_SAMPLES = 24_000, 1920
KEY = {"kyutai-api-key": "public_token"}
PATIENCE_S = 400.0
PATIENT: dict[str, Any] = {"ping_timeout": PATIENCE_S}
"""A server that reads no further ahead answers no ping: its model may be slow on a busy machine."""
AS_FAST_AS_POSSIBLE = 1000.0

OutputFrame: TypeAlias = dict[str, Any]
"""One message, as msgpack has it."""


@dataclass(frozen=True)
class Models:
    """Where a server is, and the folders of what it serves."""

    url: str
    listener: Path
    speaker: Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """``antiphon serve`` with a small model of each kind."""
    folder = tmp_path_factory.mktemp("flows")
    listener = make_checkpoint(folder / "listener", kind="stt", seed=3, dtype="float32")
    greedy = {"temp": 0.0, "temp_text": 0.0}
    speaker = make_speaker(folder / "speaker", lm_gen_config=greedy)
    options = ["--port", "0", "--backend", "torch", "--backend-option", "threads=1", "--slots", "4"]
    chosen = ["--model", str(listener), "--model", str(speaker), "--voices", str(speaker)]
    with subprocess.Popen(
        [*SERVE, *options, *chosen],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            found = next(match for line in process.stdout if (match := re.search(r"https?://\S+", line)))
            yield Models(found[0].replace("http", "ws", 1), listener, speaker)
            process.terminate()
            assert process.wait(120) == 0
        finally:
            process.kill()


def packed(**fields: Any) -> bytes:
    return bytes(msgpack.packb(fields, use_bin_type=True, use_single_float=True))


async def messages(ws: ClientConnection) -> AsyncIterator[OutputFrame]:
    """What the server says, until it closes; every message is one map that begins with its type."""
    async with asyncio.timeout(PATIENCE_S):
        async for data in ws:
            assert isinstance(data, bytes)
            message = msgpack.unpackb(data, raw=False)
            assert next(iter(message)) == "type"
            yield message


@dataclass
class Transcript:
    """What a recognition client was told: words with their starts, and stops, in order; steps; markers."""

    words: list[OutputFrame] = field(default_factory=list)
    told: list[tuple[str, float] | float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    markers: list[int] = field(default_factory=list)
    told_at_marker: int = 0

    def note(self, message: OutputFrame) -> None:
        """As the script does: a word begins, and its end comes with ``EndWord``."""
        kind, keys = message["type"], set(message) - {"type"}
        if kind == "Step":
            assert keys == {"step_idx", "prs", "buffered_pcm"}
            assert len(message["prs"]) == 4
            assert all(0 <= pause <= 1 for pause in message["prs"])
            self.steps.append(message["step_idx"])
        elif kind == "Word":
            assert keys == {"text", "start_time"}
            self.words.append(message)
            self.told.append((message["text"], message["start_time"]))
        elif kind == "EndWord":
            assert keys == {"stop_time"}
            assert self.words[-1]["start_time"] <= message["stop_time"]
            self.told.append(message["stop_time"])
        elif kind == "Marker":
            assert keys == {"id"}
            self.markers.append(message["id"])
            self.told_at_marker = len(self.told)
        else:
            assert message == {"type": "Ready"}


async def send_recording(ws: ClientConnection, pcm: FloatArray, speed: float) -> None:
    """A second of silence, the audio at ``speed``, five seconds, a marker, and half a minute more."""
    second = packed(type="Audio", pcm=[0.0] * SAMPLE_RATE)
    clock = asyncio.get_running_loop().time
    await ws.send(second)
    start = clock()
    for index in range(0, len(pcm), FRAME_SAMPLES):
        await ws.send(packed(type="Audio", pcm=pcm[index : index + FRAME_SAMPLES].tolist()))
        ahead_s = start + (index + 1) / SAMPLE_RATE / speed - clock()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
    for _ in range(5):
        await ws.send(second)
    await ws.send(packed(type="Marker", id=0))
    for _ in range(35):
        await ws.send(second)


async def transcribed(models: Models, pcm: FloatArray, speed: float) -> Transcript:
    """The flow. The script leaves at its marker; this one stays until all of the silence was heard."""
    heard, frames = Transcript(), (pcm.size + 41 * SAMPLE_RATE) // FRAME_SAMPLES
    async with connect(f"{models.url}/api/asr-streaming", **PATIENT, additional_headers=KEY) as ws:
        sending = asyncio.create_task(send_recording(ws, pcm, speed))
        async for message in messages(ws):
            heard.note(message)
            if len(heard.steps) == frames:
                break
        await sending
    return heard


@pytest.fixture(scope="module")
def file() -> FloatArray:
    """Two seconds that end within a frame."""
    return recording(seed=1, seconds=2)[SAMPLE_RATE:-777]


@pytest.fixture(scope="module")
def wanted(models: Models, file: FloatArray) -> list[tuple[str, float] | float]:
    """What upstream's loop has told of the file between its silences when the marker is due."""
    whole = np.pad(file, (SAMPLE_RATE, 5 * SAMPLE_RATE))
    due = -(-whole.size // FRAME_SAMPLES) + DELAY
    return Upstream(models.listener, whole, silence_after=DELAY + 1).told(due + 1)


@pytest.mark.parametrize("speed", [1.0, AS_FAST_AS_POSSIBLE])
async def test_a_recording_its_marker_and_nothing_lost(
    models: Models, file: FloatArray, wanted: list[tuple[str, float] | float], speed: float
) -> None:
    heard = await transcribed(models, file, speed)
    assert len(wanted) > 8
    assert_same(heard.told[: len(wanted)], wanted)
    assert heard.told_at_marker >= len(wanted)
    assert heard.markers == [0]
    assert heard.steps == list(range(1, len(heard.steps) + 1))


@dataclass
class Speech:
    """What a synthesis client was told."""

    pcm: list[FloatArray] = field(default_factory=list)
    words: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def audio(self) -> FloatArray:
        return np.concatenate(self.pcm)


async def spoken(models: Models, text: str, voice: str) -> Speech:
    """Words one by one, then the end; what comes is gathered until the server closes."""
    heard = Speech()
    query = urlencode({"voice": voice, "format": "PcmMessagePack"})
    async with connect(f"{models.url}/api/tts_streaming?{query}", **PATIENT, additional_headers=KEY) as ws:

        async def speak() -> None:
            for word in text.split():
                await ws.send(packed(type="Text", text=word))
            await ws.send(packed(type="Eos"))

        speaking = asyncio.create_task(speak())
        async for message in messages(ws):
            kind = message.pop("type")
            if kind == "Audio":
                assert len(message["pcm"]) == FRAME_SAMPLES
                heard.pcm.append(np.array(message["pcm"], np.float32))
            elif kind == "Text":
                assert set(message) == {"text", "start_s", "stop_s"}
                heard.words.append((message["text"], message["start_s"], message["stop_s"]))
            else:
                assert (kind, message) == ("Ready", {})
        await speaking
        assert ws.close_code == 1000
    return heard


async def raw_speech(models: Models, text: str, voice: str) -> bytes:
    """Text frames and the byte that ends them, answered in float32."""
    query = urlencode({"voice": voice, "format": "Pcm", "auth_id": "public_token"})
    async with (
        connect(f"{models.url}/api/tts_streaming?{query}", **PATIENT) as ws,
        asyncio.timeout(PATIENCE_S),
    ):
        for word in text.split():
            await ws.send(word)
        await ws.send(b"\0")
        return b"".join([data async for data in ws if isinstance(data, bytes)])


async def test_words_and_their_end_are_said_to_everybody_as_upstream_would(models: Models) -> None:
    wanted = said_by_upstream(upstream(models.speaker), models.speaker, told=2.0)
    one, two, raw = await asyncio.gather(
        spoken(models, TEXTS[1], "1"), spoken(models, TEXTS[2], "2"), raw_speech(models, TEXTS[2], "2")
    )
    for heard, (pcm, steps), texts in (
        (one, wanted[1], ["Good", "how", "are", "you?"]),
        (two, wanted[2], ["One", "two", "three."]),
    ):
        assert np.abs(heard.audio[: len(pcm)] - pcm.clip(-1, 1)).max() < 2e-5
        assert [text for text, _, _ in heard.words] == texts
        assert [start_s for _, start_s, _ in heard.words] == pytest.approx([0.08 * step for step in steps])
        stops = [stop_s for _, _, stop_s in heard.words]
        assert stops[:-1] == [start_s for _, start_s, _ in heard.words[1:]]
        assert stops[-1] <= len(heard.audio) / SAMPLE_RATE
    assert np.abs(np.frombuffer(raw, "<f4") - two.audio).max() < 2e-5
