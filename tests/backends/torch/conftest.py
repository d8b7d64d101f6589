"""Fixtures around small seeded models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.backends.torch.small import LMPair, MimiPair, make_lm_pair, make_mimi

collect_ignore = (
    [] if sys.platform == "linux" else ["test_decode_attention.py", "test_steps.py", "test_gpu_shapes.py"]
)  # Triton is for Linux alone


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # small models gain nothing from more, and a busy machine takes much away
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _seeded_inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def _tf32() -> Iterator[None]:
    convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = convolutions.fp32_precision
    yield
    convolutions.fp32_precision = before  # a runner of stages sets it for the whole process


@pytest.fixture(scope="session")
def mimi() -> MimiPair:
    with torch.no_grad():
        return make_mimi()


@pytest.fixture(scope="session")
def moshi(tmp_path_factory: pytest.TempPathFactory) -> LMPair:
    with torch.no_grad():
        return make_lm_pair(tmp_path_factory.mktemp("lm") / "moshi", "moshi")
