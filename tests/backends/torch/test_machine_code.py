"""What the two big kernels ask of a card, counted in machine code.

At its memory's full rate each unit of an H200 gets 18.6 bytes a clock, and it issues four instructions of a
warp in it. Four warps take a KiB of ring together: above 55 instructions each, the ring waits for them even
if they are issued in every clock, and kernels issue in about six of ten. Bounds are a little above what was
reached.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from triton.backends.compiler import GPUTarget

from antiphon.backends.torch.kernels.attention_kernels import attend_split
from antiphon.backends.torch.kernels.decode_attention import LEAST_QUERIES, SPLIT_SLOTS, block_slots_of
from antiphon.backends.torch.kernels.limb_kernels import attend_limbs
from antiphon.backends.torch.kernels.product_kernels import make_and_multiply, multiply_rows
from antiphon.backends.torch.kernels.token_kernels import choose_tokens
from antiphon.backends.torch.kernels.tokens import MOST_TOKENS, PIECE, warps_of
from antiphon.backends.torch.modules.kv import PAGE_SLOTS
from antiphon.models.tiles import FEW_ROWS, SHORT_DEPTH, SHORT_ROWS, tile_of
from tests.backends.torch.compiled import (
    AMPERE,
    HOPPER,
    SMALLEST_SHARED_BYTES,
    assert_released_and_acquired,
    compiled,
)
from tests.backends.torch.machine_code import MachineCode, machine_code

WIDTH, CAPACITY = 128, 3000
POINTERS = {"first_ptr": "*i64", "rows_ptr": "*i64", "log2_scale": "fp32", "q_ptr": "*bf16"}
TARGETS = pytest.mark.parametrize("target", [AMPERE, HOPPER], ids=["sm_80", "sm_90"])
BYTE_LOADS = ("LDS.U8", "LDS.S8", "LDG.E.U8", "LDG.E.S8")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


def holds(code: MachineCode) -> None:
    """What holds for each: nothing spilled, no byte by itself, copies of 16 bytes."""
    assert code.spilled_bytes == 0
    assert code.count("LDL", "STL", *BYTE_LOADS) == 0
    assert code.count("LDGSTS.E.BYPASS.128") > 0
    assert code.shared_bytes <= SMALLEST_SHARED_BYTES


@TARGETS
def test_attention_over_int8_is_integers_alone(target: GPUTarget, tmp_path: Path) -> None:
    """356 instructions a turn of 16.5 KiB (Triton 3.6: 385); up to 102 registers five programs fit a unit."""
    shape = {"COUNT": 1, "GROUP": 1, "CAPACITY": CAPACITY, "WIDTH": WIDTH, "SPLIT": SPLIT_SLOTS}
    types = POINTERS | {"k_ptr": "*i8", "v_ptr": "*i8", "ticket_ptr": "*i32"}
    kernel = compiled(
        attend_limbs, types | {"out_ptr": "*bf16", "rounded_ptr": "*i8"}, {"enable_fp_fusion": True},
        target=target, PAGE=PAGE_SLOTS, SPLITS=16, IS_ROUNDED=True, ROUNDED_WIDTH=32 * WIDTH,
        ROUNDED_BLOCK=32 * WIDTH, **shape,
    )  # fmt: skip
    assert_released_and_acquired(kernel.asm["ptx"])
    code = machine_code(kernel, tmp_path)
    holds(code)
    ring_kib = PAGE_SLOTS * 2 * (WIDTH + 4) / 1024
    assert code.instructions / ring_kib <= 25
    assert code.count("IMMA") == 16
    assert code.count("HMMA", "I2F.F16", "I2F.BF16", "F2F") == 0
    assert code.registers <= 102
    assert code.shared_bytes <= 40_000


@TARGETS
def test_attention_as_it_is_reads_more_than_it_computes(target: GPUTarget, tmp_path: Path) -> None:
    block = block_slots_of(WIDTH, 2)
    shape = {"COUNT": 1, "GROUP": 1, "CAPACITY": CAPACITY, "WIDTH": WIDTH, "SPLIT": SPLIT_SLOTS}
    types = POINTERS | {"k_ptr": "*bf16", "v_ptr": "*bf16"}
    kernel = compiled(
        attend_split, types, {"enable_fp_fusion": True}, target=target,
        QUERIES=LEAST_QUERIES, BLOCK=block, **shape,
    )  # fmt: skip
    code = machine_code(kernel, tmp_path)
    holds(code)
    assert code.instructions / (block * 2 * 2 * WIDTH / 1024) <= 12
    assert code.registers <= 128


@TARGETS
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1024), (1, 4096), (32, 4096), (64, 1024), (64, 4096), (128, 4096)]
)
def test_a_product_is_integers_alone(target: GPUTarget, rows: int, columns: int, tmp_path: Path) -> None:
    """From 64 rows on Hopper multiplies by warp groups, which read shared memory themselves."""
    tile = tile_of(rows, columns)
    kernel = compiled(
        multiply_rows,
        {"rows_ptr": "*i8", "weight_ptr": "*i8", "residual_ptr": "*bf16", "out_ptr": "*bf16"},
        {"num_warps": tile.warps, "num_stages": 4, "enable_fp_fusion": False},
        target=target,
        DEPTH=11264,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        BLOCK=tile.depth,
        IS_ADDED=True,
    )
    code = machine_code(kernel, tmp_path)
    holds(code)
    is_grouped = target is HOPPER and rows >= 64
    assert bool(code.count("IGMMA")) is is_grouped
    assert bool(code.count("IMMA")) is not is_grouped
    most = 36 if tile.columns == 16 else 22  # of 16 columns 19 to 33, of more 11 to 20
    assert code.instructions / (tile.columns * tile.depth / 1024) <= most
    assert code.registers <= 128  # two programs of eight warps on a unit, four of four


@TARGETS
@pytest.mark.parametrize("count", [1, FEW_ROWS])
@pytest.mark.parametrize("place", ["normed", "gated", "added"])
def test_a_product_that_makes_its_rows_still_reads_weights_at_the_rate_of_memory(
    target: GPUTarget, count: int, place: str, tmp_path: Path
) -> None:
    """A row is rounded once for all its copies: computed for each, a turn had 1,900 instructions, not 175.

    12 to 32 instructions a KiB of weights: divided instead of multiplied by a reciprocal, four rows had 42.
    """
    columns, depth = {"normed": (12288, 4096), "gated": (11264, 4096), "added": (4096, 11264)}[place]
    tile = tile_of(count, columns)
    types = {"x_ptr": "*bf16", "alpha_ptr": "*bf16", "weight_ptr": "*i8", "eps": "fp32"}
    kernel = compiled(
        make_and_multiply, types | {"residual_ptr": "*bf16", "out_ptr": "*bf16"},
        {"num_warps": tile.warps, "num_stages": 4, "enable_fp_fusion": False}, target=target,
        DEPTH=depth, PLACES=count, ROWS=tile.rows, COLUMNS=tile.columns, BLOCK=tile.depth,
        IS_NORMED=place != "added", IS_ADDED=place == "added", IS_GATED=place == "gated",
    )  # fmt: skip
    code = machine_code(kernel, tmp_path)
    holds(code)
    weights = 2 if place == "gated" else 1
    assert code.instructions / (weights * tile.columns * tile.depth / 1024) <= 33
    assert code.registers <= 80


@TARGETS
@pytest.mark.parametrize("place", ["normed", "gated"])
def test_a_product_makes_sixteen_short_rows_in_registers(
    target: GPUTarget, place: str, tmp_path: Path
) -> None:
    """Four turns of 620 to 700 instructions, of a depformer's 1,024 elements: rounding rules, not weights."""
    columns = {"normed": 3072, "gated": 2816}[place]
    tile = tile_of(SHORT_ROWS, columns)
    types = {"x_ptr": "*bf16", "alpha_ptr": "*bf16", "weight_ptr": "*i8", "eps": "fp32"}
    kernel = compiled(
        make_and_multiply, types | {"residual_ptr": "*bf16", "out_ptr": "*bf16"},
        {"num_warps": tile.warps, "num_stages": 4, "enable_fp_fusion": False}, target=target,
        DEPTH=SHORT_DEPTH, PLACES=SHORT_ROWS, ROWS=tile.rows, COLUMNS=tile.columns, BLOCK=tile.depth,
        IS_NORMED=True, IS_ADDED=False, IS_GATED=place == "gated",
    )  # fmt: skip
    code = machine_code(kernel, tmp_path)
    holds(code)
    assert code.instructions <= 720
    assert code.registers <= 128


@TARGETS
@pytest.mark.parametrize("tokens", [2048, MOST_TOKENS])
def test_a_token_is_chosen_from_registers(target: GPUTarget, tokens: int, tmp_path: Path) -> None:
    """The keys of 32,000 tokens stay in 1,024 threads' registers while the bound of the top k is found."""
    kernel = compiled(
        choose_tokens, {"topk_ptr": "*i64", "token_ptr": "*i64"},
        {"num_warps": warps_of(tokens), "enable_fp_fusion": False}, target=target,
        BLOCK=tokens, PIECE=PIECE, IS_SCALED=True,
    )  # fmt: skip
    code = machine_code(kernel, tmp_path)
    assert code.spilled_bytes == 0
    assert code.registers * 32 * warps_of(tokens) <= 65536
