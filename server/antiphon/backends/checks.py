"""Checks of calls into a backend, made before any state changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import BackendInfo, RowSnapshot, StepInputs
from antiphon.errors import AudioError, ConfigError, UnsupportedError


def check_inputs(info: BackendInfo, inputs: StepInputs) -> None:
    """Check the shapes and dtypes of one tick's input.

    Raises:
        UnsupportedError: rows that are not int32 ``[m]``, do not exist or are named twice, a reset that is
            not bool ``[m]``, or PCM or text that is missing, or given to a pipeline that wants the other.
        AudioError: PCM that is not float32 ``[m, frame_samples]``.
    """
    check_rows(info, inputs.rows)
    count, reset = inputs.count, inputs.reset
    if reset.shape != (count,) or reset.dtype != np.bool_:
        raise UnsupportedError(
            f"reset is {reset.dtype} {list(reset.shape)}, but this step needs bool [{count}]"
        )
    if not info.kind.takes_audio:
        if inputs.pcm is not None or len(inputs.text) != count:
            raise UnsupportedError(f"a tts step over {count} rows needs {count} text tuples and no PCM")
        return
    if inputs.pcm is None or inputs.text:
        raise UnsupportedError(f"a {info.kind} step over {count} rows needs PCM and no text")
    wanted = (count, info.spec.frame_samples)
    if inputs.pcm.shape != wanted or inputs.pcm.dtype != np.float32:
        raise AudioError(
            f"PCM is {inputs.pcm.dtype} {list(inputs.pcm.shape)}, but this step needs float32 {list(wanted)}"
        )


def check_rows(info: BackendInfo, rows: NDArray[np.generic]) -> None:
    """Check the row numbers of a tick: int32 ``[m]``, m at least 1, each in range and named once.

    Raises:
        UnsupportedError: they are not.
    """
    if rows.ndim != 1 or rows.dtype != np.int32 or not rows.size:
        found = f"{rows.dtype} {list(rows.shape)}"
        raise UnsupportedError(f"rows are {found}, but a step needs int32 [m], m at least 1")
    ordered = rows.copy()
    ordered.sort()
    if ordered[0] < 0 or ordered[-1] >= info.slots:
        raise UnsupportedError(
            f"a step over rows {ordered[0]} to {ordered[-1]}, "
            f"but backend {info.name} has rows 0 to {info.slots - 1}"
        )
    is_twice = ordered[1:] == ordered[:-1]
    if np.count_nonzero(is_twice):
        raise UnsupportedError(f"a step names row {ordered[1:][is_twice][0]} twice")


def check_row(info: BackendInfo, row: int) -> None:
    """Check that a row exists. Raises UnsupportedError when it does not."""
    if not 0 <= row < info.slots:
        raise UnsupportedError(
            f"row {row} does not exist, backend {info.name} has rows 0 to {info.slots - 1}"
        )


def check_snapshot(info: BackendInfo, snapshot: RowSnapshot) -> None:
    """Check that a snapshot came from a backend of the same name. Raises UnsupportedError otherwise."""
    if snapshot.backend != info.name:
        raise UnsupportedError(f"a snapshot of backend {snapshot.backend} cannot go into backend {info.name}")


def check_slots(slots: int) -> None:
    """Check a number of rows before a backend is made. Raises ConfigError when it is below 1."""
    if slots < 1:
        raise ConfigError(f"a backend needs at least 1 slot, not {slots}")


def check_requires(
    backend: str, requires: Mapping[str, str], find_version: Callable[[str], str] = version
) -> None:
    """Check the modules that a manifest wants for a backend, by least version ("" for any).

    Raises:
        UnsupportedError: one is not installed, or older; the message has both versions.
    """
    for module, least in requires.items():
        try:
            found = find_version(module)
        except PackageNotFoundError:
            wanted = f"{module} {least}".rstrip()
            raise UnsupportedError(
                f"this model on the {backend} backend needs {wanted}, which is not installed"
            ) from None
        if _release(found) < _release(least):
            raise UnsupportedError(
                f"this model on the {backend} backend needs {module} {least}, but {found} is installed"
            )


def _release(text: str) -> tuple[int, ...]:
    """The numbers a version begins with: (2, 13, 0) of "2.13.0rc1+cpu"."""
    numbers = re.match(r"[0-9.]*", text)
    return tuple(int(number) for number in numbers[0].split(".") if number) if numbers else ()
