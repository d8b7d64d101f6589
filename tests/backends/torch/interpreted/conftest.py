"""These tests run in a separate process, on Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from antiphon.backends.torch.kernels import fused
from tests.backends.torch.interpreter import language_patched_once


@pytest.fixture(autouse=True, scope="session")
def _language_patched_once() -> Iterator[None]:
    with language_patched_once():
        yield


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    monkeypatch.setattr(InterpreterBuilder, "create_fma", fused_multiply_add)


def fused_multiply_add(
    _: InterpreterBuilder, x: TensorHandle, y: TensorHandle, z: TensorHandle
) -> TensorHandle:
    """Of float32, rounded once as a card rounds it; Triton's interpreter rounds the product too."""
    exact = x.data.astype(np.float64) * y.data + z.data
    return TensorHandle(exact.astype(x.data.dtype), z.dtype.scalar)
