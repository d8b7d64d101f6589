"""Microphone and speaker through sounddevice (PortAudio). Callbacks run on PortAudio's threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from antiphon.errors import AudioError, MissingExtraError
from antiphon.install import antiphon_command
from antiphon_client.encoding import PACKET_SAMPLES, SAMPLE_RATE
from antiphon_client.jitter import JitterBuffer
from antiphon_client.record import Samples
from antiphon_client.screen import FLOOR_DB, level_db

BLOCK_SAMPLES = PACKET_SAMPLES
"""Samples of one microphone or speaker block: one Opus packet."""


def load_sounddevice() -> Any:
    """The module ``sounddevice``.

    Raises:
        MissingExtraError: ``sounddevice`` is not installed. AudioError: the system library PortAudio is
        missing.
    """
    try:
        import sounddevice
    except ImportError as error:
        raise MissingExtraError("a call", extra="talk", module="sounddevice") from error
    except OSError as error:
        raise AudioError(
            f"sounddevice cannot use this system's audio: {error}; "
            "on Debian and Ubuntu: apt install libportaudio2"
        ) from error
    return sounddevice


def list_devices(sounddevice: Any) -> str:
    """One line per device, with its number and name for ``--microphone`` and ``--speaker``."""
    devices = list(sounddevice.query_devices())
    if not devices:
        return "no sound devices: PortAudio finds neither a microphone nor a speaker"
    lines = ["number  use                   rate  name"]
    for number, device in enumerate(devices):
        uses = [
            use
            for use, key in (("microphone", "max_input_channels"), ("speaker", "max_output_channels"))
            if device[key] > 0
        ]
        rate = f"{device['default_samplerate']:.0f}"
        lines.append(f"{number:>6}  {', '.join(uses) or 'none':<19}  {rate:>5}  {device['name']}")
    return "\n".join([*lines, "Give a number or a part of a name to --microphone and --speaker."])


class Speaker:
    """Plays queued audio through a jitter buffer that the event loop and PortAudio's thread share."""

    def __init__(self) -> None:
        """Start silent."""
        self.buffer = JitterBuffer(SAMPLE_RATE)
        self.db = FLOOR_DB
        self._lock = threading.Lock()

    def push(self, pcm: Samples) -> None:
        """Queue float32 ``[samples]`` for playback."""
        with self._lock:
            self.buffer.push(pcm)

    def interrupt(self) -> None:
        """Discard the queued audio at once."""
        with self._lock:
            self.buffer.clear()

    def callback(self, out: Any, frames: int, _time: Any, _status: Any) -> None:
        """Fill PortAudio's output buffer, float32 ``[frames, 1]``."""
        with self._lock:
            out[:, 0] = self.buffer.pull(frames)
        self.db = level_db(out[:, 0])


@contextlib.contextmanager
def open_devices(
    sounddevice: Any,
    *,
    speaker: Speaker,
    on_block: Callable[[Samples], object],
    microphone_name: str | int | None,
    speaker_name: str | int | None,
) -> Iterator[None]:
    """Run the microphone and the speaker; ``on_block`` gets float32 ``[480]`` on PortAudio's thread.

    Raises:
        AudioError: a device cannot be opened at 24 kHz.
    """

    def heard(block: Any, _frames: int, _time: Any, _status: Any) -> None:
        on_block(np.array(block[:, 0], np.float32))

    shape = {"samplerate": SAMPLE_RATE, "channels": 1, "dtype": "float32", "blocksize": BLOCK_SAMPLES}
    try:
        with (
            sounddevice.OutputStream(device=speaker_name, callback=speaker.callback, **shape),
            sounddevice.InputStream(device=microphone_name, callback=heard, **shape),
        ):
            yield
    except sounddevice.PortAudioError as error:
        raise AudioError(
            f"cannot open microphone and speaker at {SAMPLE_RATE} Hz: {error}; "
            f"see the names of all devices with: {antiphon_command('talk --list-devices')}"
        ) from error
