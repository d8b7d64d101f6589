"""Linear layers with and without a oneDNN layout on this CPU."""

from __future__ import annotations

import pytest
import torch

from antiphon.backends.torch.modules import layers
from antiphon.backends.torch.modules.layers import Linear, can_pack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_linear_multiplies_the_same_packed_or_not(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    weight, x = torch.randn(24, 40).to(dtype), torch.randn(3, 40).to(dtype)
    wanted = x.float() @ weight.float().T
    for packs in {False, can_pack(dtype)}:
        monkeypatch.setattr(layers, "can_pack", lambda _, packs=packs: packs)
        layer = Linear.around(weight.clone())
        layer.pack()
        assert (layer.packed is not None) == packs
        torch.testing.assert_close(layer(x).float(), wanted, rtol=0.02, atol=0.1)


def test_float32_is_packed_everywhere() -> None:
    assert can_pack(torch.float32)
