"""A row's state as bytes, for another process of the same model and backend.

The format is safetensors: the tensors of the snapshot, and in the header's metadata what they belong to.
Rings are cut to what is filled, so a short call is a small file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from antiphon.errors import UnsupportedError

SCHEMA: Final = 2
"""Raised with every change that an older reader would not notice."""

METADATA: Final = "__metadata__"

MAX_HEADER_BYTES: Final = 4 << 20
"""Thousands of tensors, and what is noted of a call; reading more would keep other threads from running."""


@dataclass(frozen=True, slots=True)
class StateIdentity:
    """What a row's state belongs to; it goes into no other.

    ``model`` is a hash (:func:`antiphon.models.fingerprint.fingerprint`), ``backend`` its name and versions.
    """

    model: str
    backend: str
    dtype: str
    quantization: str
    schema: int = SCHEMA


@dataclass(eq=False, slots=True)
class SavedState:
    """A row's state that a new session begins with, and how much of it is on the device already."""

    arrays: Mapping[str, NDArray[Any]]
    tensors: dict[str, Any] = field(default_factory=dict)


def pack(
    arrays: Mapping[str, NDArray[Any]], identity: StateIdentity, facts: Mapping[str, str] | None = None
) -> bytes:
    """Put a snapshot's arrays (:meth:`antiphon.backends.base.Backend.to_host`) into one piece of bytes.

    ``facts`` are whatever goes along; :func:`facts_of` reads them.
    """
    tensors = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata = {**(facts or {}), **{name: str(value) for name, value in asdict(identity).items()}}
    data: bytes = save(tensors, metadata)
    return data


def unpack(data: bytes, identity: StateIdentity) -> dict[str, NDArray[Any]]:
    """The arrays that :func:`pack` was given.

    Raises:
        UnsupportedError: the bytes are no state of a row, or of another model or backend; the message says
            what differs.
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
    """What the header of a state says beside its arrays.

    Raises:
        UnsupportedError: the bytes are no state of a row.
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
