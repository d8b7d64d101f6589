"""The attention kernels compile for a GPU within its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.backends.torch.kernels.attention_kernels import attend_split, join_splits
from antiphon.backends.torch.kernels.steps import (
    LEAST_QUERIES,
    SPLIT_SLOTS,
    block_slots_of,
)
from tests.backends.torch.compiled import SMALLEST_SHARED_BYTES, compiled
from tests.backends.torch.machine_code import machine_code

POINTERS = {"first_ptr": "*i64", "rows_ptr": "*i64", "pages_ptr": "*i32", "log2_scale": "fp32"}


@pytest.mark.parametrize(
    ("ring", "width", "count"),
    [("bf16", 128, 1), ("bf16", 256, 1), ("fp32", 64, 2), ("fp32", 128, 1)],
)
def test_the_kernels_compile_for_a_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ring: str, width: int, count: int
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # unset, it is warned about
    dtype = "fp32" if ring == "fp32" else "bf16"
    shape: dict[str, Any] = {"COUNT": count, "GROUP": 1, "CAPACITY": 3000, "WIDTH": width}
    shape |= {"QUERIES": LEAST_QUERIES, "SPLIT": SPLIT_SLOTS}
    shape |= {"PAGES": 47 if ring == "bf16" else 0, "PAGE": PAGE_SLOTS}
    attend = compiled(
        attend_split,
        POINTERS | {"q_ptr": f"*{dtype}", "k_ptr": f"*{ring}", "v_ptr": f"*{ring}"},
        **shape,
        BLOCK=block_slots_of(width, {"bf16": 2, "fp32": 4}[ring]),
        IS_WHOLE=count == 2,
    )
    has_mma = "mma.sync" in attend.asm["ptx"]
    assert has_mma is (dtype == "bf16")  # the matrix units, where they are exact enough
    assert attend.asm["cubin"]
    assert 0 < attend.metadata.shared <= SMALLEST_SHARED_BYTES


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("splits", [1, 16])
def test_what_joins_splits_compiles_for_a_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str, splits: int
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    shape = {"COUNT": 1, "CAPACITY": 3000, "WIDTH": 128, "SPLIT": SPLIT_SLOTS, "SPLITS": splits}
    join = compiled(join_splits, POINTERS | {"out_ptr": f"*{dtype}"}, {"enable_fp_fusion": True}, **shape)
    assert machine_code(join, tmp_path).stack_bytes == 0
    assert join.metadata.shared <= SMALLEST_SHARED_BYTES
