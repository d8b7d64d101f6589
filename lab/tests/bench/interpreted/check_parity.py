"""Parity with interpreted kernels; run by ``test_gpu_parity.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from antiphon.backends.torch.kernels import fused, steps
from lab.bench.gpu_models import published_sizes, small_size
from lab.bench.gpu_parity import BOUNDS, FEW_STREAMS, compare, two_backends

SHRUNK = small_size(published_sizes()["moshi-7b"])
SIZE = replace(SHRUNK, lm={**SHRUNK.lm, **FEW_STREAMS})


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the fault can leave any bits: overflows and NaN
def test_a_ticket_that_is_not_zero_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no program is the last one, so the splits of attention are never joined."""
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    opened = steps.open_window

    def unzeroed(*given: Any) -> steps.FrameWindow:
        window = opened(*given)
        return window if window.tickets is None else replace(window, tickets=window.tickets + 1)

    monkeypatch.setattr(steps, "open_window", unzeroed)
    with torch.no_grad():
        assert not compare(two_backends(SIZE, int8=True, rows=2), 2, BOUNDS["int8"]).is_same
