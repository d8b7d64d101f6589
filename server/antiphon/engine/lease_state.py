"""What a lease holds, as arrays that go to another process: counters, frames not heard, replies not taken.

Positions stay as they are; a ring of another size holds them at other places. Times are seconds before now,
since no two machines have one clock. What comes is checked: shapes, counts, and the range of every number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import NO_TOKEN
from antiphon.errors import UnsupportedError
from antiphon.ipc.arena import OUT_MARKS, RING_BOUNDS, Arena
from antiphon.ipc.rings import NOT_PADDING

LeaseArrays: TypeAlias = Mapping[str, NDArray[Any]]
"""``caller`` and ``engine`` are the counters; ``in_*`` and ``out_*`` the last slots written of each ring."""

MOST: Final = 2**53
"""Of frames, and of seconds."""

PARAMETERS: Final = 6
"""Which of the caller's counters numbers the changes of its parameters."""

COMPLETE: Final = 1
"""Where the marks of an input frame have a time."""
TIMES: Final = slice(OUT_MARKS - 2, OUT_MARKS)
"""Where the marks of a reply have times."""


def copy_out(arena: Arena, lease: int, now_s: float) -> dict[str, NDArray[Any]]:
    """What a lease holds that neither side changes meanwhile."""
    arena.read_client_counters()
    caller, engine = arena.counters(lease)
    found = {"caller": caller, "engine": engine, "recent_ms": arena.blocks["recent_ms"][lease].copy()}
    heard, said = _capacities(arena)
    written, taken = int(arena.caller.written[lease]), int(arena.engine.input_taken[lease])
    if heard:
        # The last frame is there even if it was heard: it says which frame is the next.
        places = np.arange(max(0, min(taken, written - 1), written - heard), written) % heard
        found |= {name: arena.blocks[name][lease, places] for name in ("in_marks", "in_pcm")}
    written = int(arena.engine.output_written[lease])
    first = max(int(arena.engine.output_discarded[lease]), written - said + 1, 0)
    places = np.arange(first, written) % said
    found |= {name: arena.blocks[name][lease, places] for name in ("out_marks", "out_pcm", "out_vad")}
    _shift(found, -now_s)
    return found


def copy_in(arena: Arena, lease: int, arrays: LeaseArrays, now_s: float, *, tokens: int) -> None:
    """Let a lease that nothing was written to hold what :func:`copy_out` gave, of a model with ``tokens``.

    Raises:
        UnsupportedError: it is of another shape, has no room here, or a number in it is out of range.
    """
    found = {name: np.array(array) for name, array in arrays.items()}
    _check(arena, found)
    _check_numbers(found, tokens)
    _shift(found, now_s)
    heard, said = _capacities(arena)
    found["caller"][PARAMETERS] = 0  # no change is under way
    with arena.writing():
        arena.set_counters(lease, found["caller"], found["engine"])
        arena.blocks["recent_ms"][lease] = found["recent_ms"]
        _put(arena, lease, found, "in_", int(arena.caller.written[lease]), heard)
        _put(arena, lease, found, "out_", int(arena.engine.output_written[lease]), said)
    arena.publish()


def _capacities(arena: Arena) -> tuple[int, int]:
    shape = arena.shape
    return (RING_BOUNDS * shape.input_frames if shape.input_samples else 0, RING_BOUNDS * shape.output_frames)


def _put(arena: Arena, lease: int, found: LeaseArrays, prefix: str, written: int, capacity: int) -> None:
    for name, array in found.items():
        if name.startswith(prefix):
            places = np.arange(written - len(array), written) % max(1, capacity)
            arena.blocks[name][lease, places] = array


def _shift(found: dict[str, NDArray[Any]], by_s: float) -> None:
    """Add seconds to every time."""
    found["caller"].view(np.float64)[-1] += by_s
    found["engine"].view(np.float64)[-1] += by_s
    if "in_marks" in found:
        found["in_marks"].view(np.float64)[:, COMPLETE] += by_s
    found["out_marks"].view(np.float64)[:, TIMES] += by_s


def _check(arena: Arena, found: LeaseArrays) -> None:
    heard, said = _capacities(arena)
    wanted = {"caller": arena.caller.ROWS, "engine": arena.engine.ROWS}
    for name, rows in wanted.items():
        array = found.get(name)
        if array is None or array.dtype != np.int64 or array.shape != (rows,):
            raise UnsupportedError(f"a call's counters {name} are not {rows} whole numbers")
    ringed = [name for name in arena.blocks.dtype.names or () if name[:3] in ("in_", "out")]
    for name in (*ringed, "recent_ms"):
        if name.startswith("in_") and not heard:
            continue
        array, field = found.get(name), arena.blocks[name][0]
        rows = field.shape[0] if array is None or name == "recent_ms" else len(array)
        if array is None or array.dtype != field.dtype or array.shape != (rows, *field.shape[1:]):
            raise UnsupportedError(f"a call's {name} is missing, or of another shape")
        most = heard if name.startswith("in_") else said if name.startswith("out") else rows
        if rows > most:
            raise UnsupportedError(
                f"a call's {name} has {rows} frames, there is room for {most}: input_frames and "
                "output_frames of both workers have to agree"
            )
    _check_counts(found, heard, said)


def _check_counts(found: LeaseArrays, heard: int, said: int) -> None:
    """Check that what waits is among what came along."""
    caller, engine = found["caller"], found["engine"]
    pairs = [("out_marks", int(engine[1]), max(int(caller[2]), int(engine[2])), said)]
    if heard:
        pairs.append(("in_marks", int(caller[0]), int(engine[0]), heard))
    for name, written, taken, capacity in pairs:
        count = len(found[name])
        if not (0 <= taken <= written and written - taken <= count <= min(written, capacity)):
            raise UnsupportedError(f"a call's {name} has {count} frames, of {written} written, {taken} taken")


def _check_numbers(found: LeaseArrays, tokens: int) -> None:
    """Check that every number is one that an engine or a caller's half may have written."""
    caller, engine, said = found["caller"], found["engine"], found["out_marks"]
    times = np.array([caller.view(np.float64)[-1], engine.view(np.float64)[-1]])
    whole = {
        "counters": (np.concatenate([caller[:-1], engine[:-1]]), 0, MOST),
        "frames of replies": (said[:, 0], 0, MOST),
        "runs of padding": (said[:, 1], NOT_PADDING, MOST),
        "tokens": (said[:, 2], NO_TOKEN, tokens - 1),
        "times of replies": (said.view(np.float64)[:, 3:], -MOST, MOST),
        "times": (np.where(times == -np.inf, 0.0, times), -MOST, MOST),  # before the first reply
    }
    if "in_marks" in found:
        heard = found["in_marks"]
        whole["frames"] = heard[:, 0], 0, MOST
        whole["times of frames"] = heard.view(np.float64)[:, COMPLETE], -MOST, MOST
    for name in ("recent_ms", "in_pcm", "out_pcm", "out_vad"):
        if name in found:
            whole[name] = found[name], -MOST, MOST
    for name, (values, least, most) in whole.items():
        if values.size and not (values.min() >= least and values.max() <= most):
            raise UnsupportedError(f"a call's {name} have a number out of range: {least} to {most}")
