"""INT8 rings in exported graphs compared with float rings, row by row, in a quarter of the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.backends.base import FloatArray
from antiphon.backends.onnx.sessions import open_session, pick_provider
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.torch.modules.transformer import StreamingTransformer
from antiphon.backends.torch.state import MaskedStep, Step
from antiphon.models.architecture import TransformerConfig
from antiphon.models.manifest import GraphFormat
from antiphon_quantize import onnx_int8
from antiphon_quantize.onnx_export import export_stage
from antiphon_quantize.onnx_int8 import round_rings
from antiphon_quantize.onnx_modules import ExportedStage

ROWS: Final = 3
CONTEXT: Final = 6
FRAMES: Final = 15
"""Past the wrap of the ring, twice."""


def small_config() -> TransformerConfig:
    """One layer, in which two heads share a head of keys."""
    return TransformerConfig(
        dim=32, heads=4, layers=1, feed_forward=64, context=CONTEXT, rope="rope", max_period=1e4, kv_repeat=2
    )


class Layers(ExportedStage):
    """A transformer alone: ``x [n, dim]`` to the same."""

    inputs, outputs = ("x",), ("y",)

    def __init__(self, transformer: StreamingTransformer) -> None:
        super().__init__(list(transformer.specs()))
        self.transformer = transformer

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        return (self.transformer(inputs[0][:, None], step)[:, 0],)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        return (torch.zeros(rows, self.transformer.config.dim),)


def seeded() -> StreamingTransformer:
    transformer, random = StreamingTransformer("lm", small_config()), torch.Generator().manual_seed(1)
    for tensor in transformer.state_dict().values():
        spread = torch.randn(tensor.shape, generator=random) * tensor.shape[-1] ** -0.5
        tensor.copy_(spread if tensor.dim() > 1 and min(tensor.shape) > 1 else torch.ones_like(tensor))
    return transformer.eval()


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GraphFormat]:
    transformer = seeded()
    round_rings(transformer, 0)
    path = tmp_path_factory.mktemp("rings") / "layers.onnx"
    return path, export_stage(Layers(transformer), path, "layers")


def opened(graph: tuple[Path, GraphFormat]) -> Stage:
    path, form = graph
    return Stage(open_session(path, pick_provider("cpu")[1], 1), form, ROWS)


def heard(seed: int, *, level: float = 1.0) -> FloatArray:
    dim = small_config().dim
    return (np.random.default_rng(seed).normal(0, level, (FRAMES, ROWS, dim))).astype(np.float32)


def test_what_is_found_is_what_float_rings_hold(graph: tuple[Path, GraphFormat]) -> None:
    transformer, stage = seeded(), opened(graph)
    state = {s.name: torch.full((ROWS, *s.shape), s.fill, dtype=s.dtype) for s in transformer.specs()}
    random, errors = np.random.default_rng(2), []
    for frame in heard(3):
        rows = np.flatnonzero(random.random(ROWS) < 0.7).astype(np.int32)
        if rows.size:
            mask = torch.zeros(ROWS, dtype=torch.bool)
            mask[rows.tolist()] = True
            step = MaskedStep(state, mask)
            wanted = transformer(torch.from_numpy(frame)[:, None], step)[:, 0].numpy()[rows]
            state = step.tensors
            found = stage.run(rows, {"x": frame[rows]})["y"]
            errors.append(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
    assert max(errors) < 0.02


def test_a_slot_is_a_byte_a_number_and_is_written_where_it_lies(graph: tuple[Path, GraphFormat]) -> None:
    """Of a head, 2 bytes a number of its width and 12 for the scales: 268 of 1,024 for heads of 128."""
    _, form = graph
    config = small_config()
    slots, position_bytes = config.kv_heads * (CONTEXT + 1), 8
    state_bytes = sum(form.input(entry.name).row_bytes for entry in form.state)
    assert state_bytes == position_bytes + slots * (2 * config.head_dim + 12)
    assert [entry.name for entry in form.state if not entry.aliased] == ["lm.position"]


def test_a_row_is_the_same_bits_beside_a_loud_one_and_an_idle_one_stays(
    graph: tuple[Path, GraphFormat],
) -> None:
    quiet, beside = opened(graph), opened(graph)
    calm, loud = heard(4), heard(4)
    loud[:, 1:] *= 1000
    pair = np.array([0, 1], np.int32)
    for number, (one, other) in enumerate(zip(calm, loud, strict=True)):
        ends = pair[:1] if number % 3 == 2 else pair
        found = [s.run(ends, {"x": x[ends]}, is_fixed=True)["y"] for s, x in ((quiet, one), (beside, other))]
        np.testing.assert_array_equal(found[0][0], found[1][0])
        fresh = opened(graph).state.arrays
        for name, array in beside.state.arrays.items():
            np.testing.assert_array_equal(array[2], fresh[name][2], err_msg=name)


def test_a_reset_row_is_a_fresh_one(graph: tuple[Path, GraphFormat]) -> None:
    stage, fresh = opened(graph), opened(graph)
    for number, frame in enumerate(heard(5)):
        rows = np.array([0, 1, 2] if number % 2 else [1], np.int32)
        stage.run(rows, {"x": frame[rows]}, is_fixed=True)
    stage.state.reset(range(ROWS))
    for name, array in stage.state.arrays.items():
        np.testing.assert_array_equal(array, fresh.state.arrays[name], err_msg=name)


def test_no_factor_is_beyond_what_two_of_which_16_bits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs without VNNI add two products of bytes in 16 bits: 2 x 127 x 127 is the most that fits."""
    factors: list[tuple[int, int]] = []

    def multiply(left: Tensor, right: Tensor) -> Tensor:
        factors.append((int(left.max()), int(right.abs().max())))
        return torch.matmul(left.int(), right.int())

    monkeypatch.setattr(onnx_int8, "multiply_bytes", multiply)
    transformer = seeded()
    round_rings(transformer, 0)
    stage = Layers(transformer)
    state = [torch.full((ROWS, *s.shape), s.fill, dtype=s.dtype) for s in stage.specs]
    for frame in heard(6, level=100.0):
        y, *state = stage(torch.from_numpy(frame), torch.ones(ROWS, dtype=torch.bool), *state)
        assert bool(y.isfinite().all())
    assert max(left for left, _ in factors) == 127
    assert max(right for _, right in factors) == 127
