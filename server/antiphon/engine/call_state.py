"""A whole call as bytes, for another worker: its row's state, what its lease holds, and who may resume it.

The format is that of :mod:`antiphon.engine.row_state`, with the facts of the call in the header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from numpy.typing import NDArray

from antiphon.engine.row_state import StateIdentity, facts_of, pack, unpack
from antiphon.errors import UnsupportedError
from antiphon.ipc.resumption import Call, Count, Key, Note, Owner
from antiphon.models.sampling import SamplingParameters, check_parameters

FACTS: Final = "call"
ROW, LEASE = "row/", "lease/"


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What resuming a call needs beside its row and its lease.

    ``has_new_parameters``: the row does not have ``parameters`` yet. ``keys`` are the hashes of the tokens
    that are good, the newest first. ``recorded_in`` and ``recorded_out`` frames are in records of its use;
    ``given`` replies were given to its connections, those of front ends that were killed included.
    """

    call: Call
    owner: Owner
    parameters: SamplingParameters
    has_new_parameters: bool
    keys: Annotated[tuple[Key, ...], Meta(min_length=1, max_length=2)]
    notes: tuple[Note, ...]
    next_seq: Count
    told_frame: Count
    recorded_in: Count
    recorded_out: Count
    given: Count


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
        return pack(arrays, identity, {FACTS: msgspec.json.encode(self.facts).decode()})


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
