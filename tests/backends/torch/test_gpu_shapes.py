"""Ticks of the published sizes, as on a GPU, on tensors that have a device, a dtype and a shape alone.

On the meta device, as on a card, it is an error to mix tensors with the CPU's, to read a value, or to
multiply what does not fit. What a tick asks of torch is counted beside it: on a card about a kernel each.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from antiphon.backends.torch import transformer
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.kv import RingView
from antiphon.backends.torch.pipeline import Pipeline
from bench.gpu_models import Form, lm_spec, meta_modules, model_spec, published_sizes
from tests.backends.torch.recorded import HOST_WAITS, Recorder, tensors_of
from tests.backends.torch.test_capture import stages_of

ROWS = 2
MOST_KERNELS = {
    ("moshi-7b", "encode"): (520, 520),
    ("moshi-7b", "think"): (4260, 9510),
    ("moshi-7b", "decode"): (470, 470),
    ("stt-1b", "encode"): (640, 640),
    ("stt-1b", "think"): (1320, 2600),
    ("tts-1.6b", "encode"): (640, 640),
    ("tts-1.6b", "think"): (7640, 16530),
    ("tts-1.6b", "decode"): (470, 470),
}
"""By model and stage: in bfloat16, and with INT8 weights, keys and values. They may only become fewer."""


def kernels(q: Tensor, ring: RingView, first: Tensor, exec_mask: Tensor | None, length: int) -> Tensor:
    """Stands for the attention kernels: what they expect, and an output of their shape."""
    assert exec_mask is not None
    assert (first.dtype, exec_mask.dtype) == (torch.int64, torch.bool)
    assert ring.k.is_contiguous()
    assert ring.v.is_contiguous()
    assert first.is_contiguous()
    assert exec_mask.is_contiguous()
    assert 0 < length <= ring.k.shape[2]
    if ring.k_scale is None or ring.v_scale is None:
        assert ring.k.dtype == q.dtype
    else:
        assert ring.k_scale.is_contiguous()
        assert ring.v_scale.is_contiguous()
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)


def recorded(name: str, form: Form) -> dict[str, Recorder]:
    size, found = published_sizes()[name], {}
    mimi, model = meta_modules(size, form, "auto")
    generator = Generator(model.prepare(int8=form.int8_weights), lm_spec(size))
    pipeline = Pipeline(model_spec(size), mimi.prepare(), generator, rows=ROWS)
    for stage_name, stage in stages_of(pipeline, ROWS, size.lm["context"]).items():
        with Recorder() as recorder:
            stage()
        found[stage_name] = recorder
    return found


@pytest.mark.parametrize("name", published_sizes())
@pytest.mark.parametrize("is_int8", [False, True])
def test_a_tick_stays_on_the_card(name: str, is_int8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "load_decode_attention", lambda: kernels)
    monkeypatch.setattr(transformer, "is_fused", lambda attention, device, width: attention == "auto")
    form = Form(is_int8, is_int8, torch.bfloat16)
    for stage, recorder in recorded(name, form).items():
        for one in recorder.operations:
            where = f"{stage}: {one.name}"
            assert one.name not in HOST_WAITS, where
            for tensor in tensors_of((one.arguments, dict(one.options), one.results)):
                assert tensor.device.type == "meta", where
            if one.name == "_int_mm":  # what it takes on CUDA
                (rows, depth), (_, columns) = one.arguments[0].shape, one.arguments[1].shape
                assert rows > 16, where
                assert depth % 8 == columns % 8 == 0, where
        assert len(recorder.kernels) <= MOST_KERNELS[name, stage][is_int8], stage
