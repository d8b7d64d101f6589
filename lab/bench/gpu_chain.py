"""Two minimal kernels, for the chains of kernels in ``lab.bench.gpu_session``."""

# A kernel's arguments take no Python types:
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl

WIDTH = 1024


@triton.jit
def add_one(x_ptr):
    """Add one to 1024 values in memory."""
    at = x_ptr + tl.arange(0, 1024)
    tl.store(at, tl.load(at) + 1.0)


@triton.jit
def add_one_early(x_ptr):
    """Add one to 1024 values in memory; launched before the previous kernel has ended."""
    at = x_ptr + tl.arange(0, 1024)
    tl.extra.cuda.gdc_wait()
    value = tl.load(at) + 1.0
    tl.store(at, value)
    tl.extra.cuda.gdc_launch_dependents()
