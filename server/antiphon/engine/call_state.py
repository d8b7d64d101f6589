"""A whole call as bytes, for another worker: its row's state, what its lease holds, and who may resume it.

The format is that of :mod:`antiphon.engine.row_state`, with the facts of the call in the header.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from numpy.typing import NDArray

from antiphon.engine.requests import (
    MAX_COUNT,
    check_call,
    check_key,
    check_number,
    check_owner,
    read_notes,
    read_parameters,
)
from antiphon.engine.row_state import StateIdentity, facts_of, pack, unpack
from antiphon.errors import AntiphonError, UnsupportedError
from antiphon.ipc.resumption import Note
from antiphon.models.sampling import SamplingParameters

FACTS: Final = "call"
ROW, LEASE = "row/", "lease/"


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What resuming a call needs beside its row and its lease.

    ``has_new_parameters``: the row does not have ``parameters`` yet. ``keys`` are the hashes of the tokens
    that are good, the newest first. ``recorded_in`` and ``recorded_out`` frames are in records of its use;
    ``given`` replies were given to its connections, those of front ends that were killed included.
    """

    call: str
    owner: str
    parameters: SamplingParameters
    has_new_parameters: bool
    keys: tuple[bytes, ...]
    notes: tuple[Note, ...]
    next_seq: int
    told_frame: int
    recorded_in: int
    recorded_out: int
    given: int


@dataclass(frozen=True, eq=False, slots=True)
class CallState:
    """A call that no process has at the moment."""

    facts: CallFacts
    row: Mapping[str, NDArray[Any]]
    lease: Mapping[str, NDArray[Any]]

    def pack(self, identity: StateIdentity) -> bytes:
        """The call in one piece of bytes."""
        arrays = {ROW + name: array for name, array in self.row.items()}
        arrays |= {LEASE + name: array for name, array in self.lease.items()}
        facts = asdict(self.facts)
        facts["keys"] = [key.hex() for key in self.facts.keys]
        facts["notes"] = [[seq, base64.b64encode(data).decode()] for seq, data in self.facts.notes]
        return pack(arrays, identity, {FACTS: json.dumps(facts)})


def unpack_call(data: bytes, identity: StateIdentity) -> CallState:
    """The reverse of :meth:`CallState.pack`.

    Raises:
        UnsupportedError: the bytes are no call, or one of another model, backend or version.
    """
    arrays = unpack(data, identity)
    facts = _facts(facts_of(data).get(FACTS, ""))
    row = {name.removeprefix(ROW): array for name, array in arrays.items() if name.startswith(ROW)}
    lease = {name.removeprefix(LEASE): array for name, array in arrays.items() if name.startswith(LEASE)}
    return CallState(facts, row, lease)


def _facts(text: str) -> CallFacts:
    try:
        values = json.loads(text)
        values["parameters"] = read_parameters(values["parameters"])
        values["keys"] = tuple(bytes.fromhex(key) for key in values["keys"])
        notes = tuple((seq, base64.b64decode(data)) for seq, data in values["notes"])
        values["notes"] = read_notes(notes)
        facts = CallFacts(**values)
        check_call(facts.call)
        check_owner(facts.owner)
        if not 1 <= len(facts.keys) <= 2:
            raise ValueError(f"{len(facts.keys)} tokens")
        for key in facts.keys:
            check_key(key)
        for name in ("next_seq", "told_frame", "recorded_in", "recorded_out", "given"):
            check_number(name, getattr(facts, name), MAX_COUNT, is_whole=True)
        if facts.recorded_out > facts.given:
            raise ValueError(f"{facts.recorded_out} replies recorded, of {facts.given} that were given")
        numbers = [seq for seq, _ in facts.notes]
        if any(later != seq + 1 for seq, later in pairwise([*numbers, facts.next_seq])):
            raise ValueError(f"messages {numbers[:3]} ... are not those before {facts.next_seq}")
    except UnsupportedError:
        raise
    except (AntiphonError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnsupportedError(f"{len(text)} characters are no facts of a call: {error}") from error
    return facts
