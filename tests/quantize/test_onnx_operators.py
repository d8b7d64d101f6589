"""Custom translations of operators compared with torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antiphon.backends.torch.modules.layers import TokenEmbedding
from antiphon.backends.torch.state import Step
from antiphon_quantize.onnx_export import export_stage
from antiphon_quantize.onnx_modules import ExportedStage
from tests.quantize.onnx_graphs import run_graph

ENTRIES = 8001
"""Of tts-1.6b's text table, by which two tokens are put into one."""


class Embedding(ExportedStage):
    """Tokens int64 ``[n]`` that carry two, to their vectors."""

    inputs, outputs = ("tokens",), ("embedded",)

    def __init__(self) -> None:
        super().__init__([])
        self.embedding = TokenEmbedding(ENTRIES, 4, torch.float32, demux=True)
        for parameter in self.embedding.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        return (self.embedding(inputs[0]),)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        return (torch.zeros(rows, dtype=torch.int64),)


def test_two_tokens_in_one_are_taken_apart_beyond_what_a_float_holds(tmp_path: Path) -> None:
    stage = Embedding()
    export_stage(stage, tmp_path / "embedding.onnx", "")
    multiples = np.arange(1, ENTRIES, 7) * ENTRIES
    tokens = np.concatenate([multiples - 1, multiples, multiples + 1, [-1, 0, ENTRIES**2]])
    assert tokens.max() > 2**24
    (found,) = run_graph(tmp_path / "embedding.onnx", {"tokens": tokens})
    wanted = stage.embedding(torch.from_numpy(tokens)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
