"""Fixtures with small seeded models, and one thread for torch, the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import torch

from antiphon import cli
from tests.support.make_checkpoint import make_checkpoint

WIDE: Mapping[str, Any] = {"dim": 128, "hidden_scale": 4.125}
"""A language model whose matrices, all of them, divide into groups of 32."""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # small models gain nothing from more, and a busy machine takes much away
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """What tests compute beside a backend is on the CPU, on a Mac too: float32 there is as elsewhere."""
    with mx.stream(mx.cpu):
        yield


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A duplex model in float32 that can be rounded."""
    return make_checkpoint(tmp_path_factory.mktemp("mlx") / "wide", dtype="float32", **WIDE)


@pytest.fixture(scope="session")
def rounded(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model by both of our recipes."""
    folder = tmp_path_factory.mktemp("mlx-rounded")
    for recipe in ("q8", "q4"):
        line = ["quantize", "--no-gate", "--target", "mlx", "--recipe", recipe]
        line += ["--model", str(wide), str(folder / recipe)]
        assert cli.run(line) == 0
    return {recipe: folder / recipe for recipe in ("q8", "q4")}
