"""Fake CUDA tensors without a GPU: device, dtype and shape, without memory.

torch's CPU build has no guard for CUDA devices, which indexing asks for; two lines of C++ register one that
does nothing. Launches of Triton kernels are noted as Triton would specialise them, so that each can be
compiled for a card that is not here.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.compiler.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from tests.backends.torch.compiled import HOPPER

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace { C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>); }
"""
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")


@cache
def register_guard() -> None:
    """Let this process index fake CUDA tensors."""
    torch_folder = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "guard.cpp"), Path(folder, "guard.so")
        source.write_text(GUARD)
        folders = [f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}"]
        command = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", *folders]
        subprocess.run([*command, str(source), "-o", str(library), "-lc10"], check=True)
        ctypes.CDLL(str(library))


@dataclass(frozen=True, slots=True)
class Pointer:
    """What Triton looks at of a tensor: its dtype, and whether its address is a multiple of 16."""

    dtype: torch.dtype
    address: int

    def data_ptr(self) -> int:
        return self.address


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel as Triton specialises it: equal ones run the same machine code."""

    name: str
    form: str
    kernel: triton.JITFunction = field(compare=False, repr=False)
    grid: tuple[int, ...] = field(compare=False)
    source: ASTSource = field(compare=False, repr=False)
    options: dict[str, Any] = field(compare=False)
    constants: dict[str, Any] = field(compare=False)

    def compiled(self, target: GPUTarget = HOPPER) -> CompiledKernel:
        """The machine code that this launch runs on a card."""
        return triton.compile(self.source, target=target, options=self.options)


@cache
def binder(kernel: triton.JITFunction) -> Callable[..., Any]:
    """What looks at the arguments of a launch as Triton does."""
    found: Callable[..., Any] = create_function_from_signature(
        kernel.signature, kernel.params, make_backend(HOPPER)
    )
    return found


def noted(kernel: triton.JITFunction, grid: tuple[int, ...], values: Any, named: dict[str, Any]) -> Launch:
    """A launch, after Triton's own look at its arguments."""
    stand_ins = [
        Pointer(value.dtype, int(value.storage_offset()) * value.element_size())
        if isinstance(value, Tensor)
        else value
        for value in values
    ]
    bound, specialization, options = binder(kernel)(*stand_ins, **named)
    _, signature, constants, attributes = kernel._pack_args(
        make_backend(HOPPER), named, bound, specialization, options
    )
    by_name = {kernel.arg_names[path[0]]: value for path, value in constants.items()}
    kept = {name: named[name] for name in OPTIONS if name in named}
    source, name = ASTSource(kernel, signature, constants, attributes), kernel.fn.__name__
    return Launch(name, repr((signature, by_name, attributes, kept)), kernel, grid, source, kept, by_name)


def check_arguments(kernel: triton.JITFunction, values: Any, device: torch.device) -> None:
    """Pointers are tensors of the current device, dense where the kernel is given no stride of theirs."""
    for name, value in zip(kernel.arg_names, values, strict=False):
        assert isinstance(value, Tensor) is name.endswith("_ptr"), f"{kernel.fn.__name__}: {name}"
        if isinstance(value, Tensor):
            assert value.device == device, (
                f"{kernel.fn.__name__} runs on {device}: {name} is on {value.device}"
            )
            is_strided = f"{name.removesuffix('ptr')}row_stride" in kernel.arg_names
            assert is_strided or value.is_contiguous(), f"{kernel.fn.__name__}: {name}"


@dataclass
class FakeCuda:
    """A process with cards: which is current, and what was launched, captured and how often it was waited."""

    current: int = 0
    launches: list[Launch] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """Launches by kernel."""
        return Counter(launch.name for launch in self.launches)

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        """As ``torch.cuda.device``."""
        before, self.current = self.current, device.index or 0
        yield
        self.current = before

    def run(
        self, kernel: triton.JITFunction, *values: Any, grid: tuple[int, ...], warmup: bool, **named: Any
    ) -> None:
        """As ``JITFunction.run``, without running anything."""
        assert not warmup
        assert "enable_fp_fusion" in named, "Triton warns where the choice is left to it"
        assert 1 <= len(grid) <= 3
        assert all(size > 0 for size in grid)
        check_arguments(kernel, values, torch.device("cuda", self.current))
        self.launches.append(noted(kernel, grid, values, named))
        torch.zeros((), device=torch.device("cuda", self.current))  # an operation that a recorder sees


@contextmanager
def nothing(*_: Any, **__: Any) -> Iterator[None]:
    """A context of no consequence."""
    yield


class NoStream:
    """A stream, an event or a graph: what is put on it is done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what torch's take."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: 1.0


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Let tensors made inside be fake, those of CUDA devices too, and let launches be noted."""
    register_guard()
    cuda = FakeCuda()
    replaced: dict[str, Any] = {
        "device": cuda.device,
        "current_device": lambda: cuda.current,
        "stream": nothing,
        "current_stream": lambda *_: NoStream(),
        "Stream": NoStream,
        "Event": NoStream,
        "graph_pool_handle": object,
        "empty_cache": lambda: None,
        "get_device_capability": lambda *_: (9, 0),
        "graph": nothing,
        "CUDAGraph": NoStream,
    }
    with (
        mock.patch.multiple(torch.cuda, **replaced),
        mock.patch.object(triton.JITFunction, "run", lambda kernel, *a, **k: cuda.run(kernel, *a, **k)),
        # A tensor of one number would be kept as a constant, and moved to a card that is not here.
        mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", 0),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        yield cuda
