"""One rule for every parsed value: accepted ones, refused ones, and messages."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.values import Fault, ValueRule, read_number

NUMBERS = st.integers() | st.floats(allow_nan=True) | st.integers(10**400, 10**401)


@given(NUMBERS, NUMBERS.filter(lambda value: value == value), st.booleans())
def test_a_number_passes_when_it_is_finite_and_in_its_range(value: Any, bound: Any, is_low: bool) -> None:
    rule = ValueRule(float, low=bound) if is_low else ValueRule(float, high=bound)
    is_finite = abs(value) < 2**1024 and value == value and value not in (math.inf, -math.inf)
    fits = is_finite and (value >= bound if is_low else value <= bound)
    assert (rule.fault(value) is None) == fits


@given(st.sampled_from([True, False, None, "1", [1], {"a": 1}, 1, 1.5]))
def test_a_value_passes_for_no_other_type_but_an_int_for_a_float(value: Any) -> None:
    for kind in (bool, int, float, str, list, dict, type(None)):
        passes = type(value) is kind or (kind is float and type(value) is int)
        fault = ValueRule(kind).fault(value)
        assert (fault is None) == passes
        assert fault is None or fault.is_type


@pytest.mark.parametrize(
    ("rule", "value", "words"),
    [
        (ValueRule(int), "7", "is '7', a whole number is needed"),
        (ValueRule((int, type(None))), True, "is true or false, a whole number or null is needed"),
        (ValueRule(int, 1, 3), 4, "is 4, 1 to 3 are allowed"),
        (ValueRule(float, low=0.5), 0, "is 0, at least 0.5 is needed"),
        (ValueRule(float, high=2), 3.5, "is 3.5, at most 2 is allowed"),
        (ValueRule(float), math.inf, "is inf, a finite number is needed"),
        (
            ValueRule(float, 0.2, 1.2, also={0: "greedy"}),
            0.1,
            "is 0.1, 0.2 to 1.2 are allowed, or 0 for greedy",
        ),
        (ValueRule(int, low=1, also={"auto": ""}), "many", "is 'many', a whole number or 'auto' is needed"),
        (ValueRule(str, choices=("a", "b")), "x" * 99, f"is '{'x' * 39}..., not one of a, b"),
    ],
)
def test_a_fault_has_the_value_and_what_is_needed(rule: ValueRule, value: Any, words: str) -> None:
    assert rule.fault(value) == Fault(
        words, is_type="needed" in words and "at least" not in words and "finite" not in words
    )


def test_what_stands_beside_a_range_passes() -> None:
    assert ValueRule(float, 0.2, 1.2, also={0: "greedy"}).fault(0.0) is None
    assert ValueRule(int, low=1, also={"auto": ""}).fault("auto") is None


@given(st.integers(-(10**18), 10**18))
def test_whole_numbers_are_read_as_they_are_written(number: int) -> None:
    assert read_number(str(number), is_whole=True) == number
    assert read_number(f"{number}.5", is_whole=True) is None


@pytest.mark.parametrize("text", ["", "1_000", " 1", "nan", "inf", "0x1", "1e", "--1", "1" * 20])
def test_what_is_no_number_is_none(text: str) -> None:
    assert read_number(text, is_whole=False) is None
