"""Decides whether Triton kernels run a frame's attention and the operations between its matrix products.

They need a GPU and a package that not every torch includes, so they are imported only when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Final

import torch
from torch import Tensor

from antiphon.backends.machine import LEAST_CAPABILITY
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.errors import UnsupportedError

ATTENTION: Final = ("auto", "torch", "triton")
"""The implementations of a frame; "auto" means the kernels if they can run, else torch's attention."""

DEVICES: Final = ("cuda",)
"""Kinds of devices that run the kernels; a CPU does so in tests, with Triton's interpreter."""

LEAST_HEAD_DIM: Final[Mapping[KVForm, int]] = {
    KVForm.COMPUTE: 16,
    KVForm.INT8: 32,
    KVForm.INT8_INT4: 32,
    KVForm.INT4: 64,
}
"""Minimum head width for which the kernels compile: a product of bytes sums at least 32 values, and 4-bit
keys are two products.
"""

MOST_POSITIONS: Final = 8192
"""Maximum length of a convolution's past and frame together; a program holds those of one channel in
registers. A frame of Mimi has 1,920 elements; a prompt read in one pass has more.
"""


@cache
def has_triton() -> bool:
    """Whether Triton is installed; torch's wheels for CUDA include it."""
    return find_spec("triton") is not None


def is_fused(attention: str, device: torch.device, head_dim: int, kv: KVForm) -> bool:
    """Whether Triton kernels run one frame: its attention, and every other operation that has a kernel.

    ``kv`` is the format of the keys and values.

    Raises:
        UnsupportedError: the kernels were requested, and :func:`missing_for_kernels` returns a reason.
    """
    if attention == "torch":
        return False
    missing = missing_for_kernels(device, head_dim, kv)
    if missing and attention == "triton":
        raise UnsupportedError(f"attention 'triton' needs {' and '.join(missing)}")
    return not missing


def missing_for_kernels(device: torch.device, head_dim: int, kv: KVForm) -> list[str]:
    """What the kernels lack, as text: a new enough GPU, Triton, or a supported head width."""
    capability, least = LEAST_CAPABILITY, LEAST_HEAD_DIM[kv]
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
    return [
        reason
        for reason, is_met in (
            (f"a CUDA device, not {device.type}", device.type in DEVICES),
            (
                f"compute capability {_dotted(LEAST_CAPABILITY)} or above (A100, RTX 30, L4 and newer), "
                f"not {_dotted(capability)}",
                capability >= LEAST_CAPABILITY,
            ),
            ("the package triton", has_triton()),
            (
                f"a power of two from {least} as the heads' width with kv={kv}, not {head_dim}",
                head_dim >= least and head_dim.bit_count() == 1,
            ),
        )
        if not is_met
    ]


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def load_joined_past() -> Callable[..., Tensor]:
    """Import and return :func:`antiphon.backends.torch.kernels.pasts.joined_past`."""
    from antiphon.backends.torch.kernels.pasts import joined_past

    return joined_past


def load_tokens() -> ModuleType:
    """Import and return :mod:`antiphon.backends.torch.kernels.tokens`."""
    from antiphon.backends.torch.kernels import tokens

    return tokens


def load_rows() -> ModuleType:
    """Import and return :mod:`antiphon.backends.torch.kernels.rows`."""
    from antiphon.backends.torch.kernels import rows

    return rows
