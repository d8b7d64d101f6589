"""Rounding in blocks: meaning of the integers, error, and the gain of the search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from antiphon_quantize.onnx_blocks import SMALLEST_BLOCK, fitting_block, round_matrix

shapes = st.tuples(st.integers(1, 40), st.integers(1, 150))
bits_and_search = st.tuples(st.sampled_from([4, 8]), st.booleans())


def gauss(shape: tuple[int, int], seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@settings(deadline=None, max_examples=60)
@given(shapes, bits_and_search, st.sampled_from([16, 32, 128]), st.integers(0, 2**32))
def test_every_weight_is_within_half_a_step_of_where_it_was(
    shape: tuple[int, int], how: tuple[int, bool], block: int, seed: int
) -> None:
    bits, search = how
    weight = gauss(shape, seed)
    rounded = round_matrix(weight, bits, block, search=search)
    values = rounded.values()
    assert values.shape == weight.shape
    steps = np.repeat(np.abs(rounded.scales), rounded.block, axis=1)[:, : shape[1]]
    inside = np.abs(values) < (2 ** (bits - 1) - 1.01) * steps
    assert (np.abs(values - weight)[inside] <= 0.501 * steps[inside]).all()
    found = np.linalg.norm(values - weight) / np.linalg.norm(weight)
    assert rounded.error == pytest.approx(found, rel=1e-3, abs=1e-6)
    if not search:  # the largest weight is held, the one of the other sign misses by a step at most
        assert (np.abs(values - weight) <= 1.001 * steps).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_a_block_knows_nothing_of_its_neighbours(bits: int) -> None:
    weight = gauss((8, 128))
    alone = round_matrix(weight, bits, 32, search=True).values()
    weight[:, 32:64] *= 1000
    assert np.array_equal(round_matrix(weight, bits, 32, search=True).values()[:, :32], alone[:, :32])


@pytest.mark.parametrize(("bits", "block", "limit"), [(4, 32, 0.082), (4, 128, 0.098), (8, 128, 0.0065)])
def test_the_error_on_bell_shaped_weights_is_the_one_the_recipes_state(
    bits: int, block: int, limit: float
) -> None:
    assert 0.9 * limit < round_matrix(gauss((256, 1024)), bits, block, search=True).error < limit


def test_a_searched_scale_is_never_worse_and_at_4_bits_clearly_better() -> None:
    weight = gauss((256, 1024))
    for bits, gain in ((4, 0.05), (8, 0.0)):
        nearest, searched = (round_matrix(weight, bits, 32, search=search).error for search in (False, True))
        assert searched < (1 - gain) * nearest


def test_integers_use_the_whole_range_and_zeros_stay_zeros() -> None:
    for bits in (4, 8):
        rounded = round_matrix(gauss((64, 256)), bits, 32, search=False)
        assert rounded.integers.min() == 0
        assert rounded.integers.max() == 255
        zeros = round_matrix(np.zeros((3, 40), np.float32), bits, 32, search=True)
        assert not zeros.values().any()
        assert zeros.error == 0


def test_a_power_of_two_matrix_survives_unchanged() -> None:
    weight = np.random.default_rng(0).integers(-8, 8, (16, 64)).astype(np.float32)
    weight[:, ::32] = -8
    assert np.array_equal(round_matrix(weight, 4, 32, search=False).values(), weight)


@given(st.integers(1, 10_000), st.sampled_from([16, 32, 64, 128, 256]))
def test_a_block_is_no_longer_than_the_row_needs(columns: int, block: int) -> None:
    found = fitting_block(columns, block)
    assert found & (found - 1) == 0
    assert SMALLEST_BLOCK <= found <= block
    assert found == block or columns <= found
