"""When attention runs as Triton kernels."""

from __future__ import annotations

import pytest
import torch

from antiphon.backends.torch.kernels import fused
from antiphon.backends.torch.kernels.fused import is_fused
from antiphon.errors import UnsupportedError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("attention", "device", "head_dim", "triton", "want"),
    [
        ("auto", CUDA, 128, True, True),
        ("auto", CUDA, 64, True, True),
        ("auto", CUDA, 128, False, False),
        ("auto", CUDA, 8, True, False),
        ("auto", CUDA, 48, True, False),
        ("auto", CPU, 128, True, False),
        ("torch", CUDA, 128, True, False),
        ("triton", CUDA, 128, True, True),
    ],
)
def test_the_kernels_run_on_cuda_alone(
    monkeypatch: pytest.MonkeyPatch,
    attention: str,
    device: torch.device,
    head_dim: int,
    triton: bool,
    want: bool,
) -> None:
    monkeypatch.setattr(fused, "has_triton", lambda: triton)
    assert is_fused(attention, device, head_dim) is want


def test_kernels_asked_for_by_name_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "has_triton", lambda: False)
    with pytest.raises(UnsupportedError) as refusal:
        is_fused("triton", CPU, 48)
    assert str(refusal.value) == (
        "attention 'triton' needs a CUDA device, not cpu and the package triton and "
        "a power of two from 16 as the heads' width, not 48"
    )
