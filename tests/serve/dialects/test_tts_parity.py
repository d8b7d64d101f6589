"""A small tts model behind the server compared with upstream's TTSModel, in a batch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.audio.pcm import FloatArray
from antiphon.backends.registry import make_backend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.protocol import kyutai_tts
from antiphon.protocol.kyutai_tts import Eos, Spoken, Text
from tests.backends.onnx.exports import exported
from tests.backends.torch.test_tts import TEXTS, folder, wanted
from tests.serve.harness import Closed, Server, serving
from tests.serve.tts_client import listening
from tests.support.wav import decode_wav

pytestmark = pytest.mark.product  # a model is run

__all__ = ("folder", "wanted")
NAMES = tuple(map(str, range(len(TEXTS))))
Wanted = list[tuple[FloatArray, list[int]]]


async def said(server: Server, which: int, delay_s: float) -> tuple[FloatArray, list[Spoken]]:
    """One session, its text word by word."""
    await asyncio.sleep(delay_s)
    async with listening(server, voice=NAMES[which]) as client:
        for word in TEXTS[which].replace("<break ", "<break_").split():
            await client.send(Text(word.replace("<break_", "<break ")))
            await asyncio.sleep(0.01)
        await client.send(Eos())
        await client.until(Closed)
        return client.audio, client.told(Spoken)


def greedy(checkpoint: Checkpoint) -> Checkpoint:
    generation = {**checkpoint.generation, "lm_gen_config": {"temp": 0.0, "temp_text": 0.0}}
    return replace(checkpoint, spec=replace(checkpoint.spec, generation=generation))


@pytest.mark.parametrize("name", ["torch", "onnx"])
async def test_everybody_is_told_what_upstream_would_say(name: str, folder: Path, wanted: Wanted) -> None:
    found = load_checkpoint(str(folder)) if name == "torch" else exported("tts")
    assert found.file("mimi").read_bytes() == (folder / "mimi.safetensors").read_bytes()
    checkpoint = greedy(found)
    backend = make_backend(name, checkpoint, slots=4, device="cpu", options={"threads": 1})
    async with serving(model=(checkpoint, backend), slots=4, voices=folder) as server:
        heard = await asyncio.gather(*(said(server, which, 0.1 * which) for which in range(len(TEXTS))))
        body = {"text": TEXTS[1], "voice": NAMES[1]}
        async with server.http.post(server.url(kyutai_tts.PATH), json=body) as response:
            wav = decode_wav(await response.read())[0][0]
    for (audio, words), (pcm, steps) in zip(heard, wanted, strict=True):
        assert np.abs(audio[: len(pcm)] - pcm.clip(-1, 1)).max() < 2e-5
        starts = [round(step * 0.08, 3) for step in steps]
        assert {word.start_s for word in words} <= set(starts)
        assert [word.stop_s for word in words[:-1]] == [
            starts[starts.index(word.start_s) + 1] for word in words[:-1]
        ]
    pcm = wanted[1][0].clip(-1, 1)
    assert np.abs(wav[: len(pcm)] - pcm).max() < 1e-3
