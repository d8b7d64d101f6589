"""Triton kernels compiled for a GPU on a machine without one."""

from __future__ import annotations

from collections.abc import Mapping

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

HOPPER, AMPERE = GPUTarget("cuda", 90, 32), GPUTarget("cuda", 80, 32)
SMALLEST_SHARED_BYTES = 101_376
"""What a program may have on compute capability 8.6, 8.9 and 12.0; 90 has more than twice as much."""
ALIGNED = [["tt.divisibility", 16]]
"""What Triton finds, and compiles for, when a pointer or a stride is a multiple of 16: here, all of them."""


def compiled(
    kernel: triton.JITFunction,
    types: dict[str, str],
    options: Mapping[str, object] | None = None,
    *,
    target: GPUTarget = HOPPER,
    **constants: object,
) -> CompiledKernel:
    """A kernel as a launch would make it; what has no type is a pointer to float32, or an int."""
    signature = {
        name: "constexpr"
        if name in constants
        else types.get(name, "*fp32" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    at = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    aligned = {
        (index,): ALIGNED
        for index, name in enumerate(kernel.arg_names)
        if name not in constants and name.endswith(("_ptr", "_stride")) and not name.endswith("width_stride")
    }
    return triton.compile(ASTSource(kernel, signature, at, aligned), target=target, options=options)


def assert_released_and_acquired(ptx: str) -> None:
    """A ticket is taken when all threads have stored, and what others stored is read after it."""
    assert ptx.count("atom.global.gpu.acq_rel") >= 1
    before = ptx[: ptx.index("atom.global.gpu.acq_rel")]
    assert before.rindex("bar.sync") > before.rindex("st.global")
