"""Conditions for attention by Triton kernels."""

from __future__ import annotations

import pytest
import torch

from antiphon.backends.torch.kernels import fused
from antiphon.backends.torch.kernels.fused import is_fused
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.errors import UnsupportedError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
T4, A100, H100 = (7, 5), (8, 0), (9, 0)


@pytest.mark.parametrize(
    ("attention", "device", "capability", "head_dim", "triton", "want"),
    [
        ("auto", CUDA, H100, 128, True, True),
        ("auto", CUDA, A100, 64, True, True),
        ("auto", CUDA, T4, 128, True, False),
        ("auto", CUDA, H100, 128, False, False),
        ("auto", CUDA, H100, 8, True, False),
        ("auto", CUDA, H100, 48, True, False),
        ("auto", CPU, H100, 128, True, False),
        ("torch", CUDA, H100, 128, True, False),
        ("triton", CUDA, H100, 128, True, True),
    ],
)
def test_the_kernels_run_on_cuda_alone(
    monkeypatch: pytest.MonkeyPatch,
    attention: str,
    device: torch.device,
    capability: tuple[int, int],
    head_dim: int,
    triton: bool,
    want: bool,
) -> None:
    monkeypatch.setattr(fused, "has_triton", lambda: triton)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert is_fused(attention, device, head_dim, KVForm.COMPUTE) is want


@pytest.mark.parametrize(
    ("kv", "least"),
    [(KVForm.COMPUTE, 16), (KVForm.INT8, 32), (KVForm.INT8_INT4, 32), (KVForm.INT4, 64)],
)
def test_heads_that_are_too_narrow_for_a_form_run_on_torch(
    monkeypatch: pytest.MonkeyPatch, kv: KVForm, least: int
) -> None:
    monkeypatch.setattr(fused, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: H100)
    assert is_fused("auto", CUDA, least, kv)
    assert not is_fused("auto", CUDA, least // 2, kv)
    needs = f"a power of two from {least} as the heads' width with kv={kv}, not {least // 2}$"
    with pytest.raises(UnsupportedError, match=needs):
        is_fused("triton", CUDA, least // 2, kv)


def test_kernels_asked_for_by_name_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "has_triton", lambda: False)
    with pytest.raises(UnsupportedError) as refusal:
        is_fused("triton", CPU, 48, KVForm.COMPUTE)
    assert str(refusal.value) == (
        "attention 'triton' needs a CUDA device, not cpu and the package triton and "
        "a power of two from 16 as the heads' width with kv=compute, not 48"
    )


def test_a_card_that_is_too_old_is_refused_with_the_capability_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: T4)
    with pytest.raises(UnsupportedError, match=r"capability 8\.0 or above \(A100, .*\), not 7\.5$"):
        is_fused("triton", CUDA, 128, KVForm.COMPUTE)
