"""The whole server compared with upstream's loop on one checkpoint: equal words and times."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from antiphon.audio.wav import write_wav
from antiphon.backends.base import Backend, FloatArray
from antiphon.backends.registry import make_backend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.protocol.kyutai import PATH, Audio, Marker, Step
from tests.serve.asr_client import Scribe, scribe
from tests.serve.harness import FRAME_SAMPLES, Server, serving
from tests.serve.upstream_asr import DELAY, Told, Upstream, assert_same, recording, told_by
from tests.support.make_checkpoint import make_checkpoint

pytestmark = pytest.mark.product  # a model is run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("stt"), kind="stt", seed=3, dtype="float32")


def words(told: Told, after_s: float = -1.0) -> list[str]:
    """The texts of words that began after a time."""
    return [it[0] for it in told if isinstance(it, tuple) and it[1] > after_s]


def model_of(folder: Path, slots: int) -> tuple[Checkpoint, Backend]:
    checkpoint = load_checkpoint(str(folder))
    return checkpoint, make_backend("torch", checkpoint, slots=slots, device="cpu", options={})


async def follow(server: Server, pcm: FloatArray, chunk: int) -> Scribe:
    """Kyutai's flow, shorter: the audio, a second of silence, a marker, silence until it is back."""
    async with scribe(server) as client:
        hearing = asyncio.create_task(client.until(Marker))
        await client.speak(pcm, chunk)
        await client.send(Audio(np.zeros(24_000, np.float32)))
        await client.send(Marker(0))
        while not hearing.done():
            await client.send(Audio(np.zeros(FRAME_SAMPLES, np.float32)))
            await asyncio.sleep(0.02)
        return client


async def test_words_times_and_pauses_are_upstreams_for_everyone_in_the_batch(folder: Path) -> None:
    recordings = [recording(seed) for seed in range(2)]
    chunks = (480, 24_000)
    async with serving(model=model_of(folder, 4), slots=4) as server:
        clients = await asyncio.gather(
            *(follow(server, pcm, chunk) for pcm, chunk in zip(recordings, chunks, strict=True))
        )
    for client, pcm in zip(clients, recordings, strict=True):
        due = -(-(len(pcm) + 24_000) // FRAME_SAMPLES) + DELAY
        upstream = Upstream(folder, pcm, silence_after=14 + DELAY)
        told, expected = told_by(client), upstream.told(due + 1)
        assert len(expected) > 15
        assert_same(told[: len(expected)], expected)  # at its marker, all that was to be told has been
        steps = client.told(Step)
        assert [step.step_idx for step in steps] == list(range(1, len(steps) + 1))
        assert len(steps) >= due
        for step, pauses in zip(steps, upstream.pauses[1:], strict=False):
            assert step.prs == pytest.approx(pauses, abs=1e-5)


async def test_silence_heard_aside_changes_nothing_that_follows(folder: Path) -> None:
    pcm = recording()
    frames, half = len(pcm) // FRAME_SAMPLES, 20
    async with serving(model=model_of(folder, 1), slots=1) as server, scribe(server) as client:
        await client.speak(pcm[: half * FRAME_SAMPLES])
        await client.send(Marker(1))
        await client.until(Marker)
        told_early = told_by(client)
        assert len(client.told(Step)) == half
        await client.speak(pcm[half * FRAME_SAMPLES :])
        await client.send(Marker(2))
        await client.until(Marker)
    whole = Upstream(folder, pcm, silence_after=0)
    alone = Upstream(folder, pcm[: half * FRAME_SAMPLES], silence_after=DELAY + 12)
    assert words(told_early) == words(alone.told())[: len(words(told_early))]
    assert len(words(told_early)) >= len(words(alone.told(1 + half + DELAY)))
    pauses = [step.prs for step in client.told(Step)]
    assert len(pauses) == frames
    for mine, upstream in zip(pauses, whole.pauses[1:], strict=False):
        assert mine == pytest.approx(upstream, abs=1e-5)  # the state is that of a session without a marker
    settled_s = (half + 2 * DELAY + 12) * 0.08
    later = words(whole.told(), settled_s)
    assert len(later) > 2
    assert words(told_by(client), settled_s)[: len(later)] == later


async def test_a_recording_by_post_has_the_words_of_the_live_one(folder: Path, tmp_path: Path) -> None:
    pcm = recording(seconds=4)
    file = tmp_path / "speech.wav"
    write_wav(file, pcm, 24_000, is_float=True)
    async with (
        serving(model=model_of(folder, 1), slots=1) as server,
        server.http.post(server.url(PATH), data=file.read_bytes()) as response,
    ):
        assert response.status == 200
        answer = await response.json()
    told: Told = [
        (entry["text"], entry["start_time"]) if entry["type"] == "Word" else entry["stop_time"]
        for entry in answer
    ]
    frames = -(-len(pcm) // FRAME_SAMPLES)
    expected = Upstream(folder, pcm, silence_after=DELAY).told(1 + frames + DELAY)
    assert len(expected) > 15
    assert_same(told[: len(expected)], expected)
