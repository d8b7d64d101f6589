"""The training's own path through upstream's language model gives upstream's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from moshi.models import loaders
from moshi.utils.compile import no_compile

from lab.train import quick_lm
from lab.train.quick_lm import BLOCK, read
from lab.train.talker_model import lm_config

FRAMES = 2 * BLOCK + 10
"""Three blocks, the last one short; the first frame is outside of the last one's window."""


@dataclass(frozen=True, slots=True)
class Passed:
    """One pass through a model: its hidden states, its logits, the gradient of every weight that has one."""

    last: torch.Tensor
    logits: torch.Tensor
    gradients: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def lm() -> Any:
    torch.manual_seed(0)
    small = {**lm_config(30), "dim": 32, "num_heads": 4, "num_layers": 2, "context": 90, "depformer_dim": 16}
    return loaders.get_moshi_lm(None, lm_kwargs=small, device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    """Tokens of all streams, some hidden."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 30, (2, 17, FRAMES), generator=random)
    return torch.where(torch.rand(tokens.shape, generator=random) < 0.1, -1, tokens)


def _passed(lm: Any, last: torch.Tensor, logits: torch.Tensor) -> Passed:
    lm.zero_grad()
    (logits.square().mean() + last[:, ::7].sin().mean()).backward()
    gradients = {name: one.grad.clone() for name, one in lm.named_parameters() if one.grad is not None}
    return Passed(last.detach(), logits.detach(), gradients)


def test_rows_are_read_as_upstream_reads_them(lm: Any, inputs: torch.Tensor) -> None:
    with no_compile():
        last, logits = lm.forward_text(inputs)
        right = _passed(lm, last, logits[:, 0])
        made = read(lm, inputs)
        found = _passed(lm, made.last, made.text_logits)
    torch.testing.assert_close(found.last, right.last, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.logits, right.logits, rtol=1e-4, atol=1e-5)
    assert found.gradients.keys() == right.gradients.keys()
    for name, gradient in right.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-3, atol=1e-7, msg=name)
    assert len(made.layers) == 2


def test_a_frame_hears_its_context_and_no_later_frame(lm: Any, inputs: torch.Tensor) -> None:
    other = inputs.clone()
    at = BLOCK - 1
    other[:, :, at] = (other[:, :, at] + 1) % 30
    with no_compile(), torch.no_grad():
        changed = (read(lm, inputs).layers[0] != read(lm, other).layers[0]).any(-1).any(0)
    assert not changed[:at].any()
    assert changed[at : at + 90].all()
    assert not changed[at + 90 :].any(), "beyond the context of 90 frames"


def test_blocks_cover_every_frame_once() -> None:
    assert quick_lm.blocks_of(160, 90) == [(0, 75, 0), (75, 150, 0), (150, 160, 61)]
