"""Light modules import no heavy package, checked in a new interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "onnxruntime", "moshi", "mlx", "matplotlib", "huggingface_hub")
NETWORK = ("aiohttp", "asyncio")

LIGHT = {
    "antiphon.cli": (*FRAMEWORKS, *NETWORK, "numpy"),
    "antiphon.errors": (*FRAMEWORKS, *NETWORK, "numpy"),
    "antiphon.protocol.moshi": (*FRAMEWORKS, *NETWORK),
    "antiphon.protocol.chat": (*FRAMEWORKS, *NETWORK),
    "antiphon.protocol.events": (*FRAMEWORKS, *NETWORK),
    "antiphon.audio.codecs": (*FRAMEWORKS, *NETWORK, "av"),
    "antiphon.models.checkpoint": (*FRAMEWORKS, *NETWORK),
    "antiphon.config": (*FRAMEWORKS, *NETWORK, "antiphon.models.catalog"),
    "antiphon.backends.registry": (*FRAMEWORKS, *NETWORK),
    "antiphon.engine.engine": (*FRAMEWORKS, "aiohttp"),
    "antiphon.serve.hosting.engine_process": (*FRAMEWORKS, "aiohttp", "av"),
    "antiphon.serve.hosting.main": (*FRAMEWORKS, "aiohttp", "av", "numpy"),
    "antiphon.serve.hosting.front_end": (
        *(*FRAMEWORKS, "av", "antiphon.backends.registry", "antiphon.engine.engine"),
    ),
    "antiphon.serve.hosting.one_process": (*FRAMEWORKS, "av"),
    "antiphon.serve.hosting.processes": (*FRAMEWORKS, "aiohttp", "numpy", "antiphon.engine.engine"),
    "antiphon.supervisor.supervisor": (*FRAMEWORKS, "aiohttp", "numpy"),
    "antiphon_client.probe": (*FRAMEWORKS, "sounddevice", "antiphon.engine", "antiphon.serve"),
    "antiphon_quantize.main": (*FRAMEWORKS, *NETWORK),
    "antiphon_quantize.bench.main": FRAMEWORKS,
    "antiphon_quantize.bench.verify": FRAMEWORKS,
    "antiphon_client.talk": (*FRAMEWORKS, "sounddevice", "antiphon.engine", "antiphon.serve"),
}

ASK = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps(sorted(name for name in sys.argv[2:] if name in sys.modules)))
"""


@pytest.mark.parametrize("module", LIGHT)
def test_import_stays_light(module: str) -> None:
    command = [sys.executable, "-c", ASK, module, *LIGHT[module]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == []
