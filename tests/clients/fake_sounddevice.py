"""A fake of the module ``sounddevice``: a humming microphone and a recording speaker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np

from antiphon.audio.pcm import FloatArray

BLOCK_S = 0.02
Callback = Callable[[FloatArray, int, object, object], None]


class PortAudioError(Exception):
    """What the real module raises when a device cannot be opened."""


class Stream:
    """Calls back every 20 ms from a thread of its own while open."""

    def __init__(self, module: FakeSoundDevice, device: object, callback: Callback, **shape: object) -> None:
        if device == "broken":
            raise PortAudioError("Error opening stream: Invalid device")
        self.device = device
        self.shape = shape
        self._module = module
        self._callback = callback
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._module.opened.append(self)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._module.closed.append(self)

    def _run(self) -> None:
        begun_s = time.monotonic()
        blocks = 0
        while not self._stop.wait(max(0.0, begun_s + blocks * BLOCK_S - time.monotonic())):
            blocks += 1
            block = self.fill()
            self._callback(block, len(block), None, None)
            self.played(block)

    def fill(self) -> FloatArray:
        return np.zeros((480, 1), np.float32)

    def played(self, block: FloatArray) -> None:
        pass


class InputStream(Stream):
    """Hears a tone at -9 dB."""

    def fill(self) -> FloatArray:
        return (0.5 * np.sin(np.arange(480) * 2 * np.pi / 48)).astype(np.float32)[:, None]


class OutputStream(Stream):
    """Keeps what is played."""

    def played(self, block: FloatArray) -> None:
        self._module.heard.append(block[:, 0].copy())


def device(name: str, *, inputs: int, outputs: int, rate: float) -> dict[str, object]:
    """An entry of the list of devices, with the module's own names."""
    channels = {"max_input_channels": inputs, "max_output_channels": outputs}
    return {"name": name, **channels, "default_samplerate": rate}


class FakeSoundDevice:
    """The parts of the module that a call uses."""

    PortAudioError = PortAudioError

    def __init__(self) -> None:
        self.opened: list[Stream] = []
        self.closed: list[Stream] = []
        self.heard: list[FloatArray] = []
        self.devices: list[dict[str, object]] = [
            device("Built-in Mic", inputs=2, outputs=0, rate=48_000.0),
            device("Headset", inputs=1, outputs=2, rate=44_100.0),
        ]

    def InputStream(self, **options: Any) -> Stream:  # noqa: N802 - the module's own name
        return InputStream(self, options.pop("device"), options.pop("callback"), **options)

    def OutputStream(self, **options: Any) -> Stream:  # noqa: N802 - the module's own name
        return OutputStream(self, options.pop("device"), options.pop("callback"), **options)

    def query_devices(self) -> list[dict[str, object]]:
        return self.devices
