"""Converts a whole call to bytes for another worker, and back: its row's state, its lease, and the tokens
that resume it.

The format is safetensors: the tensors of the row's snapshot, the arrays of the lease, and in the header's
metadata the model, the backend and the facts of the call. Rings are cut to their filled part, so a short call
is a small file. Positions are stored, so a ring of another size can hold them in other places. Times are
stored as seconds before now, because the clocks of two machines differ. The reader checks shapes, counts, and
the range of every number: a token outside its table would crash the device with all of its rows, and a NaN in
a ring would spread through a mask into the row's next call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from antiphon.backends.base import NO_TOKEN
from antiphon.errors import UnsupportedError
from antiphon.ipc.rings import NOT_PADDING, Arena, CallerCounts, EngineCounts
from antiphon.ipc.values import OUT_MARKS, RING_BOUNDS, Call, Count, Kept, Key, Note, Owner
from antiphon.models.delays import UNGENERATED
from antiphon.models.sampling import SamplingParameters, check_parameters
from antiphon.models.spec import ModelSpec

SCHEMA: Final = 2
"""Version of the format; increase it for every change that an older reader would not detect."""

METADATA: Final = "__metadata__"

MAX_HEADER_BYTES: Final = 4 << 20
"""Maximum size of the header, enough for thousands of tensors and a call's notes. Parsing a larger header
would block threads.
"""


@dataclass(frozen=True, slots=True)
class StateIdentity:
    """The model and backend that a row's state belongs to; no other model or backend can load it.

    ``model`` is a hash (:func:`antiphon.models.checkpoint.fingerprint`), ``backend`` the backend's name and
    versions.
    """

    model: str
    backend: str
    dtype: str
    quantization: str
    schema: int = SCHEMA


@dataclass(eq=False, slots=True)
class SavedState:
    """A row's state for a new session. Some of it may already be on the device.

    With a ``lease`` the session is a call of another worker, and its row starts frozen.
    """

    arrays: Mapping[str, NDArray[Any]]
    tensors: dict[str, Any] = field(default_factory=dict)
    lease: LeaseArrays | None = None


def pack(
    arrays: Mapping[str, NDArray[Any]], identity: StateIdentity, facts: Mapping[str, str] | None = None
) -> bytes:
    """Serialize a snapshot's arrays (:meth:`antiphon.backends.base.Backend.to_host`).

    ``facts`` go into the header; :func:`facts_of` reads them.
    """
    tensors = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata = {**(facts or {}), **{name: str(value) for name, value in asdict(identity).items()}}
    data: bytes = save(tensors, metadata)
    return data


def unpack(data: bytes, identity: StateIdentity) -> dict[str, NDArray[Any]]:
    """Deserialize the arrays of :func:`pack`.

    Raises:
        UnsupportedError: the bytes are not the state of a row, or belong to another model or backend; the
            message names the difference.
    """
    found = facts_of(data)
    for name, wanted in asdict(identity).items():
        if found.get(name) != str(wanted):
            raise UnsupportedError(
                f"the row's state is of {name} {found.get(name, 'unknown')}, this process has {wanted}"
            )
    try:
        arrays: dict[str, NDArray[Any]] = load(data)
    except (SafetensorError, ValueError, KeyError) as error:  # a dtype that numpy lacks is a KeyError
        raise UnsupportedError(f"{len(data)} bytes are no state of a row: {error}") from error
    return arrays


def facts_of(data: bytes) -> Mapping[str, str]:
    """The facts in the header of a state.

    Raises:
        UnsupportedError: the bytes are not the state of a row.
    """
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise UnsupportedError(
            f"{len(data)} bytes are no state of a row: a header of {length}, the limit is {MAX_HEADER_BYTES}"
        )
    try:
        header = json.loads(data[8 : 8 + length])
        metadata = header[METADATA]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnsupportedError(f"{len(data)} bytes are no state of a row: {error}") from error
    if not isinstance(metadata, dict):
        raise UnsupportedError(f"{len(data)} bytes are no state of a row: their header names no model")
    return metadata


LARGEST: Final = 1e15
"""Largest valid value. Models write smaller values into their rings (docs/state.md)."""

LARGEST_BFLOAT16: Final = 1 + (int(np.float32(LARGEST).view(np.uint32)) >> 16)
"""The same limit for arrays of bfloat16, as the bits of a uint16, rounded up."""

MAGNITUDE_BITS: Final = np.uint16(0x7FFF)

TOKENS: Final = frozenset({"tokens", "recent", "words"})
"""Name suffixes of arrays of tokens; other integer arrays count positions and frames."""

MOST_POSITIONS: Final = 2**31 - 1
"""Largest number of frames of one call (years)."""

COUNTER_BYTES: Final = 4
"""Integers of this size or more are range-checked; narrower integers are quantised values, which are always
valid.
"""


def check_row_values(row: Mapping[str, NDArray[Any]], spec: ModelSpec) -> None:
    """Check all numbers of a row's state; arrays of bfloat16 are uint16 with the same bits.

    Raises:
        UnsupportedError: one is out of range; the message names its array and the range.
    """
    for name, array in row.items():
        least, most = _range_of(name, array, spec)
        if array.size and most is not None:
            values = array & MAGNITUDE_BITS if array.dtype == np.uint16 else array
            # Compared as Python floats, since the bounds exceed float16; false for NaN, too.
            if not (values.min().item() >= least and values.max().item() <= most):
                raise UnsupportedError(f"the row's {name} has a number out of range: {least:g} to {most:g}")


def _range_of(name: str, array: NDArray[Any], spec: ModelSpec) -> tuple[float, float | None]:
    """The smallest and the largest valid value of an array; None if every value of its type is valid."""
    kind = array.dtype.kind
    if kind == "f":
        return -LARGEST, LARGEST
    if array.dtype == np.uint16:
        return 0, LARGEST_BFLOAT16
    if kind != "i" or array.dtype.itemsize < COUNTER_BYTES:
        return 0, None
    if spec.lm is not None and name.rpartition(".")[2] in TOKENS:
        return UNGENERATED, max(spec.lm.card, spec.lm.text_card)  # each stream's initial token
    return 0, MOST_POSITIONS


LeaseArrays: TypeAlias = Mapping[str, NDArray[Any]]
"""The data of one lease for a transfer: ``caller`` and ``engine`` are the counters; ``in_*`` and ``out_*``
are the last written slots of each ring.
"""

MOST: Final = 2**53
"""Largest valid count of frames, and largest valid number of seconds."""

COMPLETE: Final = 1
"""The columns of an input frame's marks that are times."""
TIMES: Final = slice(OUT_MARKS - 2, OUT_MARKS)
"""The columns of a reply's marks that are times."""


def copy_out(arena: Arena, lease: int, now_s: float) -> dict[str, NDArray[Any]]:
    """Copy a lease's data; neither side may change it during the copy."""
    arena.read_client_counters()
    caller, engine = arena.counters(lease)
    found = {"caller": caller, "engine": engine, "recent_ms": arena.blocks["recent_ms"][lease].copy()}
    heard, said = _capacities(arena)
    written, taken = int(arena.caller.written[lease]), int(arena.engine.input_taken[lease])
    if heard:
        # The last frame is kept even if it was processed: it determines the number of the next frame.
        places = np.arange(max(0, min(taken, written - 1), written - heard), written) % heard
        found |= {name: arena.blocks[name][lease, places] for name in ("in_marks", "in_pcm")}
    written = int(arena.engine.output_written[lease])
    first = max(int(arena.engine.output_discarded[lease]), written - said + 1, 0)
    places = np.arange(first, written) % said
    found |= {name: arena.blocks[name][lease, places] for name in ("out_marks", "out_pcm", "out_vad")}
    _shift(found, -now_s)
    return found


def copy_in(arena: Arena, lease: int, arrays: LeaseArrays, now_s: float, *, tokens: int) -> None:
    """Restore the result of :func:`copy_out` in an unused lease; ``tokens`` are the token ids of the model.

    Raises:
        UnsupportedError: the shape differs, there is no room for it, or a number is out of range.
    """
    found = {name: np.array(array) for name, array in arrays.items()}
    _check(arena, found)
    _check_numbers(found, tokens)
    _shift(found, now_s)
    heard, said = _capacities(arena)
    _counts(found)[0].parameters[:] = 0  # no change is in progress
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


def _counts(found: LeaseArrays) -> tuple[CallerCounts, EngineCounts]:
    """The counters of one lease, by name."""
    return CallerCounts(found["caller"][:, None]), EngineCounts(found["engine"][:, None])


def _shift(found: dict[str, NDArray[Any]], by_s: float) -> None:
    """Add seconds to each time."""
    caller, engine = _counts(found)
    caller.due_s += by_s
    engine.first_complete_s += by_s
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
    """Check that all waiting frames and replies are included."""
    caller, engine = _counts(found)
    taken_out = np.maximum(caller.taken, engine.output_discarded)
    pairs = [("out_marks", engine.output_written, taken_out, said)]
    if heard:
        pairs.append(("in_marks", caller.written, engine.input_taken, heard))
    for name, (written,), (taken,), capacity in pairs:
        count = len(found[name])
        if not (0 <= taken <= written and written - taken <= count <= min(written, capacity)):
            raise UnsupportedError(f"a call's {name} has {count} frames, of {written} written, {taken} taken")


def _check_numbers(found: LeaseArrays, tokens: int) -> None:
    """Check that every number is one that an engine or a caller's half can write."""
    (caller, engine), said = _counts(found), found["out_marks"]
    times = np.concatenate([caller.due_s, engine.first_complete_s])
    whole = {  # the last counter of each side is a time, not a whole number
        "counters": (np.concatenate([found["caller"][:-1], found["engine"][:-1]]), 0, MOST),
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


FACTS: Final = "call"
ROW, LEASE = "row/", "lease/"


@dataclass(frozen=True, slots=True)
class CallFacts:
    """Data for resuming a call, in addition to its row and its lease.

    ``has_new_parameters``: the row does not have ``parameters`` yet. ``keys`` are the hashes of the valid
    tokens, the newest first. ``recorded_in`` and ``recorded_out`` count the frames in usage records.
    ``given`` counts the replies to all connections of the call, including connections of killed front ends.
    ``kept`` is data for the next connection.
    """

    call: Call
    owner: Owner
    parameters: SamplingParameters
    has_new_parameters: bool
    keys: Annotated[tuple[Key, ...], Meta(min_length=1, max_length=2)]
    notes: tuple[Note, ...]
    next_seq: Count
    text_frame: Count
    recorded_in: Count
    recorded_out: Count
    given: Count
    kept: Kept = b""


@dataclass(frozen=True, eq=False, slots=True)
class CallState:
    """A call that is moving between two processes."""

    facts: CallFacts
    row: Mapping[str, NDArray[Any]]
    lease: Mapping[str, NDArray[Any]]

    def pack(self, identity: StateIdentity) -> bytes:
        """Serialize the call."""
        arrays = {ROW + name: array for name, array in self.row.items()}
        arrays |= {LEASE + name: array for name, array in self.lease.items()}
        return pack(arrays, identity, {FACTS: msgspec.json.encode(self.facts).decode()})


def unpack_call(data: bytes, identity: StateIdentity) -> CallState:
    """Deserialize the bytes of :meth:`CallState.pack`.

    Raises:
        UnsupportedError: the bytes are not a call, or belong to another model, backend or version.
    """
    arrays = unpack(data, identity)
    facts = _facts(facts_of(data).get(FACTS, ""))
    row = {name.removeprefix(ROW): array for name, array in arrays.items() if name.startswith(ROW)}
    lease = {name.removeprefix(LEASE): array for name, array in arrays.items() if name.startswith(LEASE)}
    return CallState(facts, row, lease)


def _facts(text: str) -> CallFacts:
    try:
        facts = msgspec.json.decode(text, type=CallFacts)
        check_parameters(facts.parameters)
        if facts.recorded_out > facts.given:
            raise ValueError(f"{facts.recorded_out} replies recorded, of {facts.given} that were given")
        numbers = [seq for seq, _ in facts.notes]
        if any(later != seq + 1 for seq, later in pairwise([*numbers, facts.next_seq])):
            raise ValueError(f"messages {numbers[:3]} ... are not those before {facts.next_seq}")
    except UnsupportedError:
        raise
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(f"{len(text)} characters are no facts of a call: {error}") from error
    return facts
