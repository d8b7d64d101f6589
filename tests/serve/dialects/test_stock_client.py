"""The unmodified ``moshi.client`` with this server and a fake sound card."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from antiphon.models.spec import ModelSpec
from tests.serve.harness import FRAME_SAMPLES, PATIENCE_S, serving
from tests.serve.stock_sound import Microphone, Printer, Speaker
from tests.support.null_models import CODEC, DUPLEX

LOUD_FRAMES = 5


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    sounddevice = ModuleType("sounddevice")
    monkeypatch.setattr(sounddevice, "InputStream", Microphone, raising=False)
    monkeypatch.setattr(sounddevice, "OutputStream", Speaker, raising=False)
    monkeypatch.setitem(sys.modules, "sounddevice", sounddevice)
    monkeypatch.setattr(Microphone, "opened", [])
    monkeypatch.setattr(Speaker, "opened", [])
    monkeypatch.delitem(sys.modules, "moshi.client", raising=False)
    yield importlib.import_module("moshi.client")
    sys.modules.pop("moshi.client", None)


def loud_samples() -> int:
    """How much of what was played is the microphone's tone."""
    return sum(int((np.abs(block) > 0.05).sum()) for stream in Speaker.opened for block in [*stream.blocks])


def complaints(printer: Printer) -> list[str]:
    return [text for level, text in printer.logged if level in ("warning", "error")]


@pytest.mark.parametrize("spec", [CODEC, DUPLEX], ids=["codec", "duplex"])
async def test_moshi_client_hears_itself(client: ModuleType, spec: ModelSpec) -> None:
    printer = Printer()
    async with serving(spec=spec) as server:
        address = Namespace(url=f"http://127.0.0.1:{server.port}", host="", port=0, https=False)
        running = asyncio.create_task(client.run(printer, address))
        deadline = time.monotonic() + PATIENCE_S
        while loud_samples() <= LOUD_FRAMES * FRAME_SAMPLES:
            assert time.monotonic() < deadline
            assert not running.done()
            await asyncio.sleep(0.05)
        assert server.engine.health().active == 1
        # The handshake is a kind this client has no name for; everything else it understands.
        assert complaints(printer) == ["unknown message kind 0"]
    # The server is gone: the client's loop ends by itself.
    await asyncio.wait_for(running, 120)
    # Its microphone may speak once more before it knows.
    assert complaints(printer)[1:] in ([], ["Lost connection with the server!"])
    assert bool(printer.tokens) is (spec is DUPLEX)
