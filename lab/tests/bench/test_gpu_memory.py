"""The memory of a production tick on a GPU at a time, on fake CUDA tensors, compared with the sizing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from antiphon.backends.host import HostBackend
from antiphon.backends.torch.frames import TorchFrames
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.engine.sizing import memory_facts
from lab.bench.gpu_models import (
    Form,
    empty_modules,
    lm_spec,
    model_spec,
    prepared,
    published_sizes,
    reads,
    small_size,
)
from lab.tests.bench.test_gpu_devices import fake_card
from tests.backends.torch.recorded import places_of, stages_of, tensors_of

ROWS = 16


class LiveBytes(TorchDispatchMode):
    """Bytes of all live tensors of a kind of device that were made inside, and their maximum."""

    def __init__(self, device: str = "cuda") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
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
        if tensor.device.type == self.device and storage not in self._known:
            size = self._known[storage] = storage.nbytes()
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, size)

    def _forget(self, size: int) -> None:
        self.now -= size


@pytest.mark.parametrize(("name", "bits"), [*((name, 8) for name in published_sizes()), ("stt-1b", 4)])
def test_a_tick_holds_what_sizing_charges(name: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, state, and what is live at the peak beside them: of the reserve a tick takes nothing."""
    size, form = published_sizes()[name], Form(bits, KVForm.INT8)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (0, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "")
    with fake_card(monkeypatch), LiveBytes() as live:
        mimi, model = empty_modules(size, form, "auto", "cuda")
        executor = TorchFrames(
            model_spec(size), mimi.prepare(), Generator(prepared(model, form), lm_spec(size))
        )
        backend = HostBackend(model_spec(size), executor, slots=ROWS)
        del model
        gc.collect()
        facts, pipeline = memory_facts(backend.info), executor.pipeline
        held, live.peak = live.now, live.now
        for stage in stages_of(pipeline, places_of(pipeline.layout, ROWS, size.lm["context"])).values():
            stage()
            assert live.now == held
    assert facts is not None
    state_bytes = backend.info.memory["state_per_row"]
    assert held == pytest.approx(facts.weights_bytes + ROWS * state_bytes, rel=0.005)
    assert live.peak - held == pytest.approx(ROWS * (facts.row_bytes - state_bytes), rel=0.01)
    computed = reads(size, form)
    assert facts.weights_bytes == pytest.approx(computed.resident_bytes, rel=0.005)
    assert facts.row_bytes == pytest.approx(computed.row_bytes, rel=0.002)


def test_a_device_is_given_weights_as_it_keeps_them() -> None:
    """Unrounded they are twice as many bytes: a card of 16 GB holds Moshi 7B in INT8 alone."""
    size = small_size(published_sizes()["moshi-7b"])
    _, model = empty_modules(size, Form(16, KVForm.INT8), "torch", "cpu")
    with torch.no_grad(), LiveBytes("meta") as live:
        model.prepare(int8=True, device=torch.device("meta"))
        gc.collect()
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}
    assert 0 < live.now <= live.peak <= 1.15 * live.now
