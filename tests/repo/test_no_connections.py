"""The server and its dependencies open no connections, counted in a namespace without network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.repo.tracked import ROOT, tracked_files
from tests.support.calm import SERVE
from tests.support.empty_network import attempts

WATCHED_S = 15.0
"""ONNX Runtime's telemetry looks for its collector 10 s after the start."""

DEPENDENCIES = (
    "aiohttp",
    "aiortc",
    "av",
    "gguf",
    "huggingface_hub",
    "matplotlib",
    "mlx.core",
    "moshi",
    "moshi.models",
    "msgpack",
    "msgspec",
    "onnx",
    "onnxscript",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk.trace",
    "pocket_tts",
    "prometheus_client",
    "safetensors",
    "sentencepiece",
    "sphn",
    "tokenizers",
    "torch",
    "torchao",
    "uvloop",
    "zeroconf",
)
"""What the base and the extras bring and our processes import."""


def _environment(home: Path) -> dict[str, str]:
    """Ours without what a developer's shell or the Makefile forbids, and with a home of its own."""
    forbidding = ("ORT_DISABLE_TELEMETRY", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")
    kept = {name: value for name, value in os.environ.items() if name not in forbidding}
    return {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}


def test_a_server_of_several_processes_connects_to_nothing_and_leaves_nothing_at_home(tmp_path: Path) -> None:
    options = ["--port", "0", "--front-ends", "1", "--backend", "onnx", "--slots", "1"]
    environment = _environment(tmp_path)
    assert attempts([*SERVE, *options], WATCHED_S, environment) == 0
    assert list(tmp_path.rglob("*")) == []


def test_no_dependency_connects_to_anything(tmp_path: Path) -> None:
    script = f"import time, {', '.join(DEPENDENCIES)}\ntime.sleep({WATCHED_S})"
    assert attempts([sys.executable, "-c", script], 20 * WATCHED_S, _environment(tmp_path)) == 0


@pytest.mark.parametrize(
    "attempt",
    ["socket.socket().connect_ex(('192.0.2.1', 443))", "socket.getaddrinfo('collector.example', 443)"],
    ids=["address", "name"],
)
def test_an_attempt_is_counted(tmp_path: Path, attempt: str) -> None:
    script = f"import contextlib, socket\nwith contextlib.suppress(OSError): {attempt}"
    assert attempts([sys.executable, "-c", script], WATCHED_S, _environment(tmp_path)) > 0


def test_onnxruntime_is_imported_only_where_its_telemetry_is_off() -> None:
    importing = {
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path.suffix == ".py"
        and any(
            line.startswith(("import onnxruntime", "from onnxruntime"))
            for line in path.read_text().splitlines()
        )
    }
    assert importing == {"server/antiphon/backends/onnx/sessions.py"}
