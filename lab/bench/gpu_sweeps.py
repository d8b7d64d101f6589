"""Steps of ``lab.bench.gpu_session`` that measure the two big kernels in many forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
from torch import Tensor

from antiphon.backends.torch.kernels.linear_kernels import multiply_rows
from antiphon.backends.torch.kernels.rows import linear_rows, multiply, plain_rows, rows_through
from antiphon.backends.torch.kernels.steps import decode_attention
from antiphon.backends.torch.modules.attention import KVRing
from antiphon.backends.torch.modules.kv_forms import KVForm, quantize_tokens
from antiphon.backends.torch.modules.layers import Linear
from antiphon.backends.torch.quantised import Int4Linear, Int8Linear
from antiphon.backends.torch.state import State
from antiphon.models.costs import KERNEL_S, LEAST_ROWS, RING_SHARE, product_s
from lab.bench.gpu_card import Task, Values, card_here, device, median_ms, note
from lab.bench.gpu_models import in_int4

BEYOND_CACHE_BYTES = 300_000_000
SHAPES = ((4096, 12288), (4096, 4096), (4096, 22528), (11264, 4096), (1024, 3072), (2816, 1024))
TILES = (
    (16, 256, 4, 4),
    (32, 256, 4, 4),
    (64, 128, 4, 4),
    (64, 256, 4, 3),
    (128, 128, 4, 4),
    (64, 128, 8, 4),
    (32, 128, 4, 4),
    (32, 128, 8, 4),
    (16, 128, 4, 4),
)
"""Columns, bytes of depth, warps, stages."""


def attention(task: Task) -> Values:
    """Measure the decode attention of one layer over full INT8 rings with each split, in GB/s read."""
    rows, capacity, heads = (2, 300, 2) if task.is_small else (64, 3000, 32)
    rings = []
    for _ in range(2):  # 1.6 GB each, so that none is in the cache
        ring = KVRing("ring", heads, capacity, 128, task.form.dtype, "position", KVForm.INT8)
        state = State([spec.pooled() for spec in ring.specs()], rows, device())
        for name, tensor in state.tensors.items():
            tensor.fill_(0.02) if name.endswith("scale") else tensor.random_(-127, 128)
        rings.append((ring, state.step(range(rows))))
    q = torch.randn(rows, heads, 1, 128, device=device(), dtype=task.form.dtype)
    first = torch.full((rows,), capacity, device=device())
    read_bytes = sum(tensor.nbytes for tensor in rings[0][1]._tensors.values())
    found: Values = {}
    for split in (256,) if task.is_small else (128, 256, 512, 1024):

        def both(split: int = split) -> None:
            for ring, step in rings:
                decode_attention(q, ring.view(step), first, step.rows, capacity, split_slots=split)

        try:
            found[f"split {split}"] = 2 * read_bytes / median_ms(both, 0.05) / 1e6
        except Exception as error:
            found[f"split {split}"] = f"{type(error).__name__}: {error}"[:200]
        note(found)
    card = card_here()
    computed_s = read_bytes / (RING_SHARE * card.copy_bytes_per_s) + card.node_s + KERNEL_S
    computed = {"computed_gb_s": read_bytes / computed_s / 1e9}
    return {"rows": rows, "ring_gb": read_bytes / 1e9, **computed, "gb_s": found}


def products(task: Task) -> Values:
    """Time the products of a layer at each number of rows, in microseconds: ours, INT4's, torch's,
    bfloat16's, and ours with other tiles.

    A batch above 1: of that number of rows only.
    """
    found: Values = {}
    for depth, columns in ((128, 96),) if task.is_small else SHAPES:
        copies = 1 if task.is_small else min(32, max(2, BEYOND_CACHE_BYTES // (depth * columns)))
        plain = [torch.randn(columns, depth, device=device()) * depth**-0.5 for _ in range(copies)]
        linears = [Int8Linear(*quantize_tokens(weight)) for weight in plain]
        fours = [in_int4(Linear.around(weight, None)) for weight in plain]
        for four in fours:
            four.pair(rows_through)
        half = [weight.to(task.form.dtype) for weight in plain]
        for rows in (1, 16) if task.is_small else (task.batch,) if task.batch > 1 else (1, 16, 64, 128):
            entry = _by_rows(task, linears, fours, half, rows)
            found[f"{depth}x{columns}, {rows} rows"] = entry
            note({f"{depth}x{columns}, {rows} rows": entry})
    return found


def _by_rows(
    task: Task, linears: list[Int8Linear], fours: list[Int4Linear], half: list[Tensor], rows: int
) -> Values:
    x = torch.randn(rows, linears[0].in_features, device=device(), dtype=task.form.dtype)
    values, scale = quantize_tokens(x)
    forms: dict[str, Callable[[int], object]] = {
        "ours": lambda index: multiply(linears[index], values, scale, x.dtype),
        "ours, rows made": lambda index: linear_rows(linears[index], plain_rows(x, linears[index])),
        "INT4 weights": lambda index: multiply(fours[index], values, scale, x.dtype),
        "bfloat16": lambda index: torch.nn.functional.linear(x, half[index]),
    }
    if rows > LEAST_ROWS:
        forms["int_mm"] = lambda index: torch._int_mm(values, linears[index].weight.t())
        forms["int_mm, scaled"] = lambda index: (
            (
                forms["int_mm"](index) * scale[:, None] * linears[index].scale  # type: ignore[operator]
            ).to(x.dtype)
        )
    tiles = {f"tile {tile}": partial(_tiled, linears, values, scale, x, tile) for tile in TILES}
    if not task.is_small:
        forms |= tiles
    card, weights = card_here(), linears[0].weight.numel()
    entry: Values = {
        f"{name}, computed": 1e6 * (product_s(held, rows, card, bits) + card.node_s + KERNEL_S)
        for name, held, bits in (("ours", weights, 8), ("INT4 weights", weights * 9 // 16, 4))
    }
    for name, form in forms.items():
        try:
            if name in tiles and not torch.equal(
                tiles[name](0), multiply(linears[0], values, scale, x.dtype)
            ):
                raise ValueError("another product than ours")
            each = partial(_over_all, form, len(linears))
            entry[name] = 1000 * median_ms(each, 0.03) / len(linears)
        except Exception as error:
            entry[name] = f"{type(error).__name__}: {error}"[:200]
    return entry


def _over_all(form: Callable[[int], object], count: int) -> None:
    for index in range(count):
        form(index)


def _tiled(
    linears: list[Int8Linear],
    values: Tensor,
    scale: Tensor,
    x: Tensor,
    tile: tuple[int, int, int, int],
    index: int,
) -> Tensor:
    linear = linears[index]
    columns, block, warps, stages = tile
    rows, depth = values.shape
    out = x.new_empty(rows, linear.out_features)
    multiply_rows[(1, triton.cdiv(linear.out_features, columns))](
        values, scale, linear.weight, linear.scale, out, out, rows, linear.out_features,
        DEPTH=depth, ROWS=max(LEAST_ROWS, triton.next_power_of_2(rows)), COLUMNS=columns, BLOCK=block,
        IS_ADDED=False, num_warps=warps, num_stages=stages, enable_fp_fusion=False,
    )  # fmt: skip
    return out
