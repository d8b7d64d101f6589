"""The memory of a production tick on a GPU at a time, on fake CUDA tensors, compared with the sizing."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.pipeline import Pipeline
from antiphon.engine.config import EngineConfig
from antiphon.models.costs import CARDS
from lab.bench.gpu_models import Form, empty_modules, lm_spec, model_spec, published_sizes, reads
from lab.bench.gpu_simulation import rows_held
from tests.backends.torch.fake_cuda import fake_cuda
from tests.backends.torch.recorded import places_of, stages_of, tensors_of

INT8 = Form.of(is_int8=True)
ROWS = 16
TICK_ROW_BYTES = 1_725_000
"""Bytes of a row at the peak: a convolution of Mimi with its input; stages follow each other."""


class LiveBytes(TorchDispatchMode):
    """Bytes of all live tensors that were made inside, and their maximum."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        results = func(*args, **dict(kwargs or {}))
        for tensor in tensors_of(results):
            self._note(tensor)
        return results

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._known:
            size = self._known[storage] = storage.nbytes()
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, size)

    def _forget(self, size: int) -> None:
        self.now -= size


@pytest.mark.parametrize("name", published_sizes())
def test_a_tick_holds_what_sizing_charges_and_a_little_of_its_reserve(name: str) -> None:
    """Weights and state are counted within half a percent; ticks add less than a fifth of the reserve."""
    size = published_sizes()[name]
    with fake_cuda(), torch.no_grad(), LiveBytes() as live:
        mimi, model = empty_modules(size, INT8, "auto", "cuda")
        generator = Generator(model.prepare(int8=True), lm_spec(size))
        pipeline = Pipeline(model_spec(size), mimi.prepare(), generator, rows=ROWS)
        held, live.peak = live.now, live.now
        for stage in stages_of(pipeline, places_of(pipeline.layout, ROWS, size.lm["context"])).values():
            stage()
            assert live.now == held
        tick_bytes = live.peak - held
    cost = reads(size, INT8)
    assert held == pytest.approx(cost.resident_bytes + ROWS * cost.state_bytes, rel=0.005)
    assert tick_bytes == pytest.approx(ROWS * TICK_ROW_BYTES, rel=0.01)
    reserve = EngineConfig().memory_reserve_fraction
    for card in CARDS:
        assert rows_held(size, INT8, card) * TICK_ROW_BYTES < reserve * card.memory_bytes / 5
