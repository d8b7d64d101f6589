"""The whole way, beside upstream's own loop on the same checkpoint: the same words at the same times.

The loop is that of scripts/stt_from_file_pytorch.py (kyutai-labs/delayed-streams-modeling): silence, then the
audio, one frame at a time through upstream's Mimi and LMGen; words are read off its tokens by the rules of
rust/moshi-core/src/asr.rs.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import sentencepiece
import torch
from moshi.models import loaders
from moshi.models.lm import LMGen
from moshi.utils.compile import no_compile

from antiphon.audio.wav import write_wav
from antiphon.backends.base import Backend, FloatArray
from antiphon.backends.registry import make_backend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.protocol.kyutai import PATH, Audio, EndWord, Marker, Step, Word
from tests.serve.asr_client import Scribe, scribe
from tests.serve.harness import FRAME_SAMPLES, Server, serving
from tests.support.make_checkpoint import NOT_LM, make_checkpoint
from tests.support.small_models import trial_signal

pytestmark = pytest.mark.product  # a model is run

DELAY = 6
SECONDS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("stt"), kind="stt", seed=3, dtype="float32")


def recording(seed: int = 0, seconds: int = SECONDS) -> FloatArray:
    torch.manual_seed(seed)
    array: FloatArray = trial_signal(24_000 * seconds).numpy()
    return np.concatenate([np.zeros(24_000, np.float32), array])


Told: TypeAlias = "list[tuple[str, float] | float]"
"""Words with their starts, and stops, in the order they are told."""


class Upstream:
    """What upstream writes: its tokens, the probabilities of a pause, words and their times."""

    def __init__(self, folder: Path, pcm: FloatArray, silence_after: int) -> None:
        """Hear a frame of silence, the audio, and so many frames of silence more."""
        config = json.loads((folder / "config.json").read_text())
        mimi_config = json.loads((folder / "mimi_config.json").read_text())
        mimi = loaders.get_mimi(folder / "mimi.safetensors", mimi_config, num_codebooks=config["n_q"])
        arguments = {
            key: value for key, value in config.items() if key not in NOT_LM and not key.endswith("_name")
        }
        lm = loaders.get_moshi_lm(
            folder / "model.safetensors", lm_kwargs=arguments, device="cpu", dtype=torch.float32
        )
        self._spm = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
        tail = -len(pcm) % FRAME_SAMPLES + silence_after * FRAME_SAMPLES
        whole = torch.from_numpy(np.pad(pcm, (FRAME_SAMPLES, tail)))[None, None]
        gen = LMGen(lm, temp=0.0, temp_text=0.0, use_sampling=False)
        self.tokens: list[int] = []
        self.pauses: list[list[float]] = []
        with torch.no_grad(), no_compile(), mimi.streaming(1), gen.streaming(1):
            for frame in torch.split(whole, FRAME_SAMPLES, dim=2):
                written = gen.step_with_extra_heads(mimi.encode(frame))
                assert written is not None
                text, heads = written
                self.tokens.append(int(text[0, 0, 0]))
                self.pauses.append([float(head[0, 0, 0]) for head in heads])

    def told(self, steps: int | None = None) -> Told:
        """All that is certain after so many steps."""
        told: Told = []
        word: list[int] = []
        is_unended, last_stop_s = False, 0.0
        for step, token in enumerate(self.tokens[:steps], start=1):
            if step < DELAY:
                continue
            if token not in (0, 3):
                word.append(token)
            elif word:
                told.append((self._spm.decode(word), last_stop_s))
                word, is_unended = [], True
            if token == 0:
                stop_s = (step - DELAY) / 12.5
                told += [stop_s] if is_unended else []
                is_unended, last_stop_s = False, stop_s
        return told


def told_by(client: Scribe) -> Told:
    return [
        (message.text, message.start_time) if isinstance(message, Word) else message.stop_time
        for message in client.messages
        if isinstance(message, Word | EndWord)
    ]


def assert_same(told: Told, expected: Told) -> None:
    """The same texts, and times equal to a millisecond."""
    texts, times = zip(*(it if isinstance(it, tuple) else ("", it) for it in told), strict=True)
    other_texts, other_times = zip(
        *(it if isinstance(it, tuple) else ("", it) for it in expected), strict=True
    )
    assert texts == other_texts
    assert times == pytest.approx(other_times, abs=0.0006)


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
