"""A base installation without torch serves echo by its graphs."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import aiohttp
import numpy as np

from tests.backends.onnx.exports import exported_pocket
from tests.serve.process import START_S, ServerProcess, said
from tests.support.calm import CALM_OPTIONS

BLOCKED = ("torch", "torchao", "moshi", "onnx", "onnxscript", "mlx", "huggingface_hub")

BLOCK = """
import sys, importlib.util
blocked = sys.argv[1].split(",")
for name in blocked:
    sys.modules[name] = None  # importing it fails, as where it is not installed
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in blocked else real(name, *rest)
"""

SERVE = (
    BLOCK
    + """
from antiphon import cli
sys.exit(cli.run(["serve", "--port", "0", "--model", "echo", "--slots", "1", *sys.argv[2:]]))
"""
)

STEP = (
    BLOCK
    + """
import numpy as np
from antiphon.audio.files import read_audio
from antiphon.backends.base import StepInputs
from antiphon.backends.registry import make_backend
from antiphon.models.catalog import load_checkpoint
from antiphon_client.clip import default_clips

clip = next(clip for clip in default_clips() if "colour" in str(clip))
pcm = np.concatenate([read_audio(clip), np.zeros(30 * 1920, np.float32)])
pcm = pcm[: pcm.size // 1920 * 1920].reshape(-1, 1, 1920)
row, one, rest = np.array([0], np.int32), np.array([True]), np.array([False])
for model in ("echo", "tiny"):
    backend = make_backend("auto", load_checkpoint(model), slots=2)
    replies = [backend.step(StepInputs(row, one if not i else rest, frame)) for i, frame in enumerate(pcm)]
    silent = pcm.shape[0] - sum(bool(reply.emitted[0]) for reply in replies)
    loudness = max(float(np.sqrt(np.mean(np.square(reply.pcm)))) for reply in replies[4:])
    print(model, backend.info.name, silent, loudness > 0.03)
"""
)


def test_the_built_in_models_run_without_torch() -> None:
    command = [sys.executable, "-c", STEP, ",".join(BLOCKED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["echo onnx 0 True", "tiny onnx 1 True"]


SPEAK = (
    BLOCK
    + """
import numpy as np
from antiphon.backends.base import StepInputs, TextEntry
from antiphon.backends.registry import make_backend
from antiphon.models.catalog import load_checkpoint

backend = make_backend("auto", load_checkpoint(sys.argv[2]), slots=2)
row, one = np.array([1], np.int32), np.array([True])
reply = backend.step(StepInputs(row, one, None, ((TextEntry((5,), "Seven.", is_last=True),),)))
print(backend.info.name, bool(reply.emitted[0]), bool(reply.pcm.any()))
"""
)


def test_pocket_tts_speaks_without_torch_and_without_its_package() -> None:
    blocked = ",".join((*BLOCKED, "pocket_tts", "tokenizers", "yaml"))
    command = [sys.executable, "-c", SPEAK, blocked, str(exported_pocket().root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["onnx True True"]


async def test_the_server_answers_without_torch() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVE, ",".join(BLOCKED), *CALM_OPTIONS),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        found = await asyncio.wait_for(said(process, r"https?://\S+"), START_S)
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{found[0]}/readyz") as response:
                assert response.status == 200
            server = ServerProcess(process, found[0], http)
            async with server.call("ext=1&format=pcm_f32le") as client:
                time_s = np.arange(8 * 1920) / 24000
                for frame in np.split((np.sin(2 * np.pi * 220 * time_s) / 3).astype(np.float32), 8):
                    await client.speak(frame)
                heard = [(await client.reply())[1] for _ in range(8)]
        assert [len(frame) for frame in heard] == [1920] * 8
        assert np.square(heard[-1]).mean() > 1e-4
    finally:
        process.kill()
        await process.wait()
