"""Tensors written one by one are readable by the safetensors library."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from antiphon.models.weights import TensorInfo, read_header
from antiphon_quantize.tensor_file import tensor_bytes, writing_tensors
from antiphon_quantize.torch_target import TORCH_DTYPES, put

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
TORCH = {name: dtype for dtype, name in TORCH_DTYPES.items()}
PLANS = st.dictionaries(
    st.text("abc.é", min_size=1),
    st.builds(TensorInfo, st.sampled_from(sorted(TORCH_DTYPES.values())), SHAPES),
    max_size=6,
)


@given(plan=PLANS, seed=st.integers(0, 2**32))
def test_any_tensors_in_any_order_come_back(
    plan: dict[str, TensorInfo], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tensors") / "x.safetensors"
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randint(0, 2, info.shape, generator=generator).to(TORCH[info.dtype])
        for name, info in plan.items()
    }
    names = sorted(plan)
    random.Random(seed).shuffle(names)
    with writing_tensors(path, plan) as file:
        for name in names:
            put(file, name, tensors[name])
    assert read_header(path) == plan
    with safe_open(path, framework="pt") as found:
        assert set(found.keys()) == set(plan)
        for name, tensor in tensors.items():
            assert found.get_tensor(name).dtype == tensor.dtype
            assert torch.equal(found.get_tensor(name), tensor)


def test_a_tensor_that_is_not_as_planned_is_refused(tmp_path: Path) -> None:
    plan = {"a": TensorInfo("I8", (2, 3)), "b": TensorInfo("F32", ())}
    assert [tensor_bytes(info) for info in plan.values()] == [6, 4]
    with (
        pytest.raises(
            ValueError,
            match=r"a is TensorInfo\(dtype='I8', shape=\(3, 2\)\) in 6 bytes, planned was TensorInfo",
        ),
        writing_tensors(tmp_path / "x", plan) as file,
    ):
        put(file, "a", torch.zeros(3, 2, dtype=torch.int8))


def test_a_tensor_that_is_missing_is_noticed(tmp_path: Path) -> None:
    plan = {"a": TensorInfo("I8", (2,)), "b": TensorInfo("F32", ())}
    with (
        pytest.raises(ValueError, match=r"1 tensors were not written: \['b'\]"),
        writing_tensors(tmp_path / "x", plan) as file,
    ):
        put(file, "a", torch.zeros(2, dtype=torch.int8))
