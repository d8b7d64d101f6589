"""Opens ONNX Runtime sessions: chooses a graph's device, the number of threads, and how they wait.

Only this module imports ONNX Runtime. From release 1.29 on the library sends usage data unless an environment
variable disables it before the import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from antiphon.backends.machine import has_vnni
from antiphon.errors import CheckpointFormatError, ConfigError
from antiphon.log import Log

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime

__all__ = ["onnxruntime"]


PROVIDERS: Final[Mapping[str, str]] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
}
"""ONNX Runtime's names of the devices."""


@dataclass(frozen=True, slots=True)
class SplitSession:
    """Runs parts of a tick at the same time: a session of one thread, called from several threads.

    ``threads`` counts all of them, including the calling thread.
    """

    session: onnxruntime.InferenceSession
    pool: ThreadPoolExecutor
    threads: int


@dataclass(frozen=True, slots=True)
class Opener:
    """A graph's file, and the options of its sessions on a CPU with several threads.

    ``threads`` of a step include the calling one. ``spin``: waiting threads spin (:func:`open_session`); None
    lets a measurement decide. ``pool`` contains the other threads, which run parts of a tick at the same
    time; None means that ticks have no parts. ``file_bytes`` is the size of a session's weights. A graph that
    ``is_short`` has one session of one thread, which also runs the parts.
    """

    path: Path
    providers: list[tuple[str, dict[str, Any]]]
    threads: int
    spin: bool | None
    pool: ThreadPoolExecutor | None
    file_bytes: int
    is_short: bool = False

    def open(self, *, spin: bool) -> onnxruntime.InferenceSession:
        """Open a session that runs on all threads, or on one if the graph is short."""
        return open_session(self.path, self.providers, 1 if self.is_short else self.threads, spin=spin)

    def open_split(self, session: onnxruntime.InferenceSession) -> SplitSession | None:
        """Return a session that runs parts of a tick: ``session`` if it has one thread, otherwise a second
        one; None if there are no parts, or if the session cannot be opened.
        """
        if self.pool is None:
            return None
        own = session if self.is_short else self.open_second(1)
        return None if own is None else SplitSession(own, self.pool, self.threads)

    def open_second(self, threads: int, *, spin: bool = False) -> onnxruntime.InferenceSession | None:
        """Open a second session; None, and a log line, if it cannot be opened, as when memory holds only one
        session.
        """
        try:
            return open_session(self.path, self.providers, threads, spin=spin)
        except CheckpointFormatError as error:
            Log(__name__).warning("graph not opened twice", threads=threads, spin=spin, error=str(error))
            return None


def pick_provider(device: str | None) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The device's full name, and the execution providers to request, best first.

    ``device`` is "cpu" (also None), "cuda", "cuda:1" or "coreml". The CPU runs the operations that a device
    does not support.

    Raises:
        ConfigError: the device is unknown, or this ONNX Runtime was built without it.
    """
    kind, _, index = (device or "cpu").partition(":")
    if kind not in PROVIDERS or (index and not (kind == "cuda" and index.isdecimal())):
        raise ConfigError(f"no device is called '{device}'; there are: cpu, cuda, cuda:N, coreml")
    available = onnxruntime.get_available_providers()
    if PROVIDERS[kind] not in available:
        raise ConfigError(
            f"device {device} was requested, but this onnxruntime ({onnxruntime.__version__}) has "
            f"{', '.join(available)}; for CUDA install onnxruntime-gpu in its place"
        )
    cpu: tuple[str, dict[str, Any]] = (PROVIDERS["cpu"], {})
    if kind == "cpu":
        return kind, [cpu]
    options = {"device_id": index or "0"} if kind == "cuda" else {}
    return device or kind, [(PROVIDERS[kind], options), cpu]


def session_options(
    threads: int, *, spin: bool = False, vnni: bool | None = None
) -> onnxruntime.SessionOptions:
    """The options of a session; see :func:`open_session`. If ``vnni`` is None, the CPU's flags decide.

    Without VNNI, sums of products of signed weights can overflow 16 bits. An option then makes the runtime
    use unsigned weights and sums of 32 bits, which are exact but slower.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # its warnings concern nodes that run on the CPU as intended
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    is_exact = has_vnni() if vnni is None else vnni
    options.add_session_config_entry("session.x64quantprecision", "0" if is_exact else "1")
    return options


def open_session(
    path: Path, providers: list[tuple[str, dict[str, Any]]], threads: int, *, spin: bool = False
) -> onnxruntime.InferenceSession:
    """Load a graph to run on ``threads`` threads, including the calling one.

    During a step a waiting thread sleeps or, with ``spin``, keeps its core. Between steps all threads sleep,
    which leaves the cores to sockets and codecs.

    Raises:
        CheckpointFormatError: this ONNX Runtime cannot run the file.
    """
    options = session_options(threads, spin=spin)
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # its exceptions have no other common base
        words = " ".join(str(error).split())
        raise CheckpointFormatError(
            f"{path} cannot be run by onnxruntime {onnxruntime.__version__}: {words:.300}"
        ) from error
