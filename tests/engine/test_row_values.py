"""Received numbers of a row's state: valid ones of each backend pass, others are refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.engine.call_state import check_row_values
from antiphon.errors import UnsupportedError
from tests.support.null_models import CODEC, DUPLEX


def test_the_numbers_of_a_row_are_in_their_ranges() -> None:
    row: dict[str, NDArray[Any]] = {
        "lm.tokens": np.array([[-2, -1, 0, 2048]]),
        "lm.recent": np.array([-1, 99], np.int32),
        "lm.position": np.array(3000),
        "lm.0.k": np.array([0x5863, 0xD863], np.uint16),  # the most that a ring has, as bfloat16
        "lm.0.v": np.array([-128, 127], np.int8),
        "encoder.0.past": np.array([-1e15, 1e15], np.float32),
        "encoder.0.block.1.past": np.zeros((3, 0), np.float32),
        "host.frames": np.array(0),
        "row": np.array([2**32 - 1], np.uint32),
        "started": np.array(True),
    }
    check_row_values(row, DUPLEX)
    del row["lm.tokens"], row["lm.recent"]
    check_row_values(row, CODEC)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("lm.tokens", np.array([0, 2049]), "-2 to 2048"),
        ("lm.tokens", np.array([-3, 0]), "-2 to 2048"),
        ("delays.words", np.array([1 << 20], np.int32), "-2 to 2048"),
        ("lm.position", np.array(-1), "0 to 2.14748e+09"),
        ("host.frames", np.array(2**40), "0 to 2.14748e+09"),
        ("past", np.array([0, np.nan], np.float32), "-1e+15 to 1e+15"),
        ("past", np.array([np.nan, 0], np.float16), "-1e+15 to 1e+15"),
        ("past", np.array([0, -np.inf], np.float32), "-1e+15 to 1e+15"),
        ("lm.0.k", np.array([0x7F80], np.uint16), "0 to 22628"),
        ("lm.0.k", np.array([0xFFC0], np.uint16), "0 to 22628"),
    ],
)
def test_one_that_is_not_is_refused_with_its_range(name: str, array: NDArray[Any], words: str) -> None:
    sentence = f"the row's {name} has a number out of range: {words}"
    with pytest.raises(UnsupportedError, match=f"^{re.escape(sentence)}$"):
        check_row_values({name: array}, DUPLEX)
