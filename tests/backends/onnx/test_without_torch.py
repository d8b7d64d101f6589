"""The base installation: with torch out of reach, the server serves echo by its graphs, and answers."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = ("torch", "torchao", "moshi", "onnx", "onnxscript", "mlx", "huggingface_hub")

STEP = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None  # importing it fails, as where it is not installed
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in sys.argv[1:] else real(name, *rest)

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


def test_the_built_in_models_run_without_torch() -> None:
    command = [sys.executable, "-c", STEP, *BLOCKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["echo onnx 12 True", "duplex-seeded onnx 11 True"]
