"""The unmodified ``moshi.client`` against our server, with a sound card made of arrays."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import pytest

from antiphon.backends.base import FloatArray
from antiphon.models.spec import ModelSpec
from tests.serve.harness import CODEC, DUPLEX, FRAME_SAMPLES, PATIENCE_S, serving

LOUD_FRAMES = 5
PERIOD_S = 0.02
"""A quarter of real time, to keep the test short: the client has no clock but its sound card's."""


class FakeStream:
    """Calls back with a block of samples each period, on a thread of its own, as PortAudio does."""

    def __init__(self, *, blocksize: int, channels: int, callback: Callable[..., None], **_: object) -> None:
        self._shape = (blocksize, channels)
        self._callback = callback
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.blocks: list[FloatArray] = []
        self.opened.append(self)

    opened: list[FakeStream]

    def __enter__(self) -> FakeStream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def block(self, index: int) -> FloatArray:
        return np.zeros(self._shape, np.float32)

    def _run(self) -> None:
        for index in range(10_000):
            block = self.block(index)
            self._callback(block, self._shape[0], None, None)
            self.blocks.append(block)
            if self._stop.wait(PERIOD_S):
                return


class Microphone(FakeStream):
    opened: list[FakeStream] = []  # noqa: RUF012 (reset by the fixture)

    def block(self, index: int) -> FloatArray:
        seconds = (index * self._shape[0] + np.arange(self._shape[0])) / 24000
        tone = (0.3 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32)
        return tone[:, None]


class Speaker(FakeStream):
    opened: list[FakeStream] = []  # noqa: RUF012


class Printer:
    """Collects what the client would print."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, str]] = []
        self.tokens: list[str] = []

    def log(self, level: str, message: str) -> None:
        self.logged.append((level, message))

    def print_token(self, token: str) -> None:
        self.tokens.append(token)

    def print_header(self) -> None: ...

    def print_pending(self) -> None: ...

    def print_lag(self) -> None: ...


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
