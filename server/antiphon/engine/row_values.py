"""The numbers of a row's state from elsewhere, each in the range that a model's own rows stay in.

Shapes are the backend's to check. A token beyond its table would end a device with all of its rows; a number
that is none would stay in a ring, whose next call it would reach behind a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import UnsupportedError
from antiphon.models.delays import UNGENERATED
from antiphon.models.spec import ModelSpec

LARGEST: Final = 1e15
"""What a model writes into its rings is smaller (docs/state.md)."""

LARGEST_BFLOAT16: Final = 1 + (int(np.float32(LARGEST).view(np.uint32)) >> 16)
"""The same as the bits of a bfloat16, rounded up."""

MAGNITUDE_BITS: Final = np.uint16(0x7FFF)

TOKENS: Final = frozenset({"tokens", "recent", "words"})
"""The last part of the names of what holds tokens; other whole numbers count positions and frames."""

MOST_POSITIONS: Final = 2**31 - 1
"""Of one call: years."""

COUNTER_BYTES: Final = 4
"""Or more; a narrower number is a quantised value, of which none is wrong."""


def check_row_values(row: Mapping[str, NDArray[Any]], spec: ModelSpec) -> None:
    """Check all numbers of a row's state; arrays of bfloat16 are uint16 with the same bits.

    Raises:
        UnsupportedError: one is out of range; the message names its array and the range.
    """
    for name, array in row.items():
        least, most = _range_of(name, array, spec)
        if array.size and most is not None:
            values = array & MAGNITUDE_BITS if array.dtype == np.uint16 else array
            # As Python's numbers, since a float16 has no such range; false for what is no number, too.
            if not (values.min().item() >= least and values.max().item() <= most):
                raise UnsupportedError(f"the row's {name} has a number out of range: {least:g} to {most:g}")


def _range_of(name: str, array: NDArray[Any], spec: ModelSpec) -> tuple[float, float | None]:
    """The least and the most of an array; None where every number of its type is right."""
    kind = array.dtype.kind
    if kind == "f":
        return -LARGEST, LARGEST
    if array.dtype == np.uint16:
        return 0, LARGEST_BFLOAT16
    if kind != "i" or array.dtype.itemsize < COUNTER_BYTES:
        return 0, None
    if spec.lm is not None and name.rpartition(".")[2] in TOKENS:
        return UNGENERATED, max(spec.lm.card, spec.lm.text_card)  # each is the initial token of its stream
    return 0, MOST_POSITIONS
