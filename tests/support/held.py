"""The memory reachable from an object."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, FrameType, MethodType)
"""What belongs to the program and to no object."""


def reachable(thing: object) -> Iterator[Any]:
    """It, and all that it refers to, once each."""
    seen, found = {id(thing)}, [thing]
    while found:
        one = found.pop()
        yield one
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, SHARED):
                seen.add(id(other))
                found.append(other)


def held_bytes(thing: object) -> int:
    """Bytes of all byte strings and buffers that it keeps."""
    return sum(len(it) for it in reachable(thing) if isinstance(it, bytes | bytearray))


def largest_held(thing: object) -> int:
    """Entries of the largest collection that it keeps."""
    return max(
        len(it) for it in reachable(thing) if hasattr(it, "__len__") and not isinstance(it, bytes | str)
    )
