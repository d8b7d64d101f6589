"""The base installation: with torch out of reach, the server serves echo by its graphs, and answers."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import aiohttp
import numpy as np

from tests.serve.process import START_S, ServerProcess, said

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
sys.exit(cli.run(["serve", "--port", "0", "--model", "echo", "--slots", "1"]))
"""
)

STEP = (
    BLOCK
    + """
import numpy as np
from antiphon.backends.base import StepInputs
from antiphon.backends.registry import make_backend
from antiphon.models.catalog import load_checkpoint

for model in ("echo", "duplex-seeded"):
    backend = make_backend("auto", load_checkpoint(model), slots=2)
    time_s = np.arange(12 * 1920) / 24000
    pcm = (0.3 * np.sin(2 * np.pi * 220 * time_s)).astype(np.float32).reshape(12, 1, 1920)
    one, rest = np.array([True]), np.array([False])
    replies = [backend.step(StepInputs(one, one if not i else rest, pcm[i])) for i in range(12)]
    loudness = float(np.sqrt(np.mean([np.square(reply.pcm) for reply in replies[4:]])))
    print(model, backend.info.name, sum(bool(reply.emitted[0]) for reply in replies), loudness > 0.01)
"""
)


def test_the_built_in_models_run_without_torch() -> None:
    command = [sys.executable, "-c", STEP, ",".join(BLOCKED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["echo onnx 12 True", "duplex-seeded onnx 11 True"]


async def test_the_server_answers_without_torch() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVE, ",".join(BLOCKED)),
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
                for frame in np.split(np.sin(2 * np.pi * 220 * time_s).astype(np.float32) / 3, 8):
                    await client.speak(frame)
                heard = [(await client.reply())[1] for _ in range(8)]
        assert [len(frame) for frame in heard] == [1920] * 8
        assert np.square(heard[-1]).mean() > 1e-4
    finally:
        process.kill()
        await process.wait()
