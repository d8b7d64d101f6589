"""The attention kernels, interpreted in a process of their own: the variable that asks for it is for all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from antiphon.backends.torch.attention_kernels import attend_split, join_splits
from antiphon.backends.torch.decode_attention import (
    BLOCK_SLOTS,
    LEAST_QUERIES,
    SPLIT_SLOTS,
)

CHECKS = Path(__file__).parent / "interpreted" / "check_decode_attention.py"
ROOT = Path(__file__).parents[3]
HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {"first_ptr": "*i64", "exec_ptr": "*i1", "log2_scale": "fp32"}


def test_the_kernels_pass_their_checks_interpreted() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECKS)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"(\d+) passed", run.stdout)
    assert found, run.stdout
    assert int(found[1]) >= 10


def _compiled(kernel: triton.JITFunction, types: dict[str, str], **constants: object) -> dict[str, str]:
    """A kernel's assembly for a card that need not be here; what is no pointer is an integer."""
    types = POINTERS | types
    signature = {
        name: "constexpr"
        if name in constants
        else types.get(name, "*fp32" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    at = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    found: dict[str, str] = triton.compile(ASTSource(kernel, signature, at), target=HOPPER).asm
    return found


@pytest.mark.parametrize(("ring", "width"), [("i8", 128), ("bf16", 128), ("fp32", 64)])
def test_the_kernels_compile_for_a_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ring: str, width: int
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # unset, it is warned about
    dtype = "fp32" if ring == "fp32" else "bf16"
    shape = {"COUNT": 1, "GROUP": 1, "CAPACITY": 3000, "WIDTH": width, "QUERIES": LEAST_QUERIES}
    shape |= {"SPLIT": SPLIT_SLOTS, "IS_MASKED": True}
    attend = _compiled(
        attend_split,
        {"q_ptr": f"*{dtype}", "k_ptr": f"*{ring}", "v_ptr": f"*{ring}"},
        **shape,
        BLOCK=BLOCK_SLOTS,
        IS_INT8=ring == "i8",
    )
    assert ("mma.sync" in attend["ptx"]) is (dtype == "bf16")  # the matrix units, where they are exact enough
    assert attend["cubin"]
    assert _compiled(join_splits, {"out_ptr": f"*{dtype}"}, **shape)["cubin"]
