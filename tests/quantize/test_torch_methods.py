"""AWQ, GPTQ and SmoothQuant: smaller output error than rounding to the nearest value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.backends.torch.quantised import Int4Linear, Int8Linear
from antiphon.errors import CheckpointFormatError
from antiphon_quantize.recipe import Recipe
from antiphon_quantize.torch_rounding import Rounded, damping, format_of, rounding_of, stacked

WIDTH = 128


def recipe(form: str, method: str, **options: Any) -> Recipe:
    return Recipe("", "x", 4, (), (), {}, format=form, method=method, **{"block": 32, **options})


def round_matrix(form: str, method: str, weight: Tensor, rows: Tensor | None) -> Rounded:
    asked = recipe(form, method)
    return rounding_of(asked, format_of(asked))(weight, rows)


def correlated(count: int, seed: int) -> Tensor:
    """Rows of which the later directions say ever less, as hidden vectors do."""
    fixed, drawn = (torch.Generator().manual_seed(number) for number in (0, seed))
    mix = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=fixed))[0] * torch.logspace(0, -1.5, WIDTH)
    rows: Tensor = torch.randn(count, WIDTH, generator=drawn) @ mix.t()
    return rows


def with_outliers(count: int, seed: int) -> Tensor:
    """Rows of which four channels are thirty times as loud as the others."""
    rows = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))
    rows[:, ::32] *= 30
    return rows


def weight() -> Tensor:
    full: Tensor = torch.randn(48, WIDTH, generator=torch.Generator().manual_seed(7)) / WIDTH**0.5
    return full


def error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize(("heard", "gain"), [(16, 1.0), (128, 0.85), (1024, 0.7)])
def test_gptq_is_nearer_on_rows_it_has_not_heard(heard: int, gain: float) -> None:
    full, rows = weight(), correlated(1000, seed=2)
    nearest = round_matrix("int4", "nearest", full, None)
    made = round_matrix("int4", "gptq", full, correlated(heard, seed=1))
    errors = [error(rows @ one.values().t(), rows @ full.t()) for one in (made, nearest)]
    assert 0 < errors[0] < gain * errors[1]


def test_gptq_believes_little_of_a_few_rows() -> None:
    assert damping(10_000, 100) == 0.01
    assert damping(100, 100) == pytest.approx(0.1)
    assert damping(25, 100) == pytest.approx(0.8)


def test_gptq_forgets_a_channel_that_is_silent() -> None:
    rows = correlated(256, seed=1)
    rows[:, 5] = 0
    values = round_matrix("int4", "gptq", weight(), rows).values()
    assert values[:, 5].abs().max() < 0.01
    assert torch.isfinite(values).all()


def test_awq_is_nearer_where_some_inputs_are_loud() -> None:
    full, rows = weight(), with_outliers(500, seed=2)
    nearest = round_matrix("int4", "nearest", full, None)
    made = round_matrix("int4", "awq", full, with_outliers(200, seed=1))
    assert made.prescale is not None
    assert made.prescale.shape == (1, WIDTH)
    layer = Int4Linear(made.weight, made.scale, prescale=made.prescale[0])
    want = rows @ full.t()
    assert error(layer(rows), want) < 0.85 * error(rows @ nearest.values().t(), want)
    assert torch.allclose(layer(rows), rows @ made.values().t(), atol=1e-3)


def int8_layer(made: Rounded) -> Int8Linear:
    prescale = None if made.prescale is None else made.prescale[0]
    return Int8Linear(made.weight, made.scale, prescale=prescale, step=made.step)


def test_smoothquant_spares_the_quiet_inputs_beside_loud_ones() -> None:
    full, heard, rows = weight(), with_outliers(200, seed=1), with_outliers(500, seed=2)
    want = rows @ full.t()
    plain, smooth, static = (
        int8_layer(round_matrix("int8", method, full, heard))
        for method in ("nearest", "smoothquant", "smoothquant-static")
    )
    errors = [error(layer(rows), want) for layer in (plain, smooth, static)]
    assert errors[1] < 0.75 * errors[0]
    assert errors[1] < errors[2] < 0.1
    assert (static.step is not None, smooth.step) == (True, None)
    louder = 100 * rows[:1]
    assert error(static(louder), louder @ full.t()) > 0.5, (
        "a fixed step clips what is louder than all it heard"
    )
    assert error(smooth(louder), louder @ full.t()) < 0.02


def test_what_was_not_heard_is_rounded_by_itself() -> None:
    full = weight()
    plain = round_matrix("int4", "nearest", full, None)
    made = round_matrix("int4", "awq", full, None)
    assert torch.equal(made.values(), plain.values())
    assert made.prescale is not None
    both = stacked([made, made])
    assert both.prescale is not None
    assert (both.weight.shape, both.prescale.shape) == ((96, WIDTH // 2), (2, WIDTH))


@pytest.mark.parametrize(
    ("form", "method", "block", "message"),
    [
        ("int5", "nearest", 32, r"format is 'int5'; it can be int8, int4, fp8"),
        ("int4", "nearest", 3, "blocks of 3 weights; INT4 needs an even number"),
        (
            "int4",
            "magic",
            32,
            "method is 'magic'; it can be nearest, awq, gptq, smoothquant, smoothquant-static",
        ),
        ("int8", "gptq", 32, "gptq makes int4, not int8"),
    ],
)
def test_what_does_not_exist_is_said(form: str, method: str, block: int, message: str) -> None:
    asked = recipe(form, method, block=block)
    with pytest.raises(CheckpointFormatError, match=message):
        rounding_of(asked, format_of(asked))
