"""Training with rounded weights: the weights in a step, their updates, and the shipped ones."""

from __future__ import annotations

import torch
from torch import nn

from antiphon_quantize.onnx_blocks import round_matrix
from antiphon_quantize.recipe import load_recipe
from lab.train.rounding import BITS, BLOCK, Rounding, is_rounded, round_in_blocks


class Net(nn.Module):
    """One matrix that is rounded, with a last block that is not full, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.transformer = nn.Module()
        self.transformer.layers = nn.ModuleList([nn.Linear(80, 48, bias=False)])
        self.linear = nn.Linear(48, 3, bias=False)

    @property
    def matrix(self) -> nn.Parameter:
        """The rounded one."""
        return next(iter(self.transformer.parameters()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Both, one after the other."""
        return self.linear(inputs @ self.matrix.T)  # type: ignore[no-any-return]


def levels(weight: torch.Tensor) -> int:
    """The most values in a block of a row."""
    return max(len(block.unique()) for row in weight for block in row.split(BLOCK))


def test_only_matrices_of_transformers_are_rounded() -> None:
    rounded = {name for name, weight in Net().named_parameters() if is_rounded(name, weight)}
    assert rounded == {"transformer.layers.0.weight"}
    assert not is_rounded("transformer.layers.0.norm1.alpha", torch.zeros(1, 1, 8))
    assert is_rounded("depformer.layers.1.gating.3.linear_in.weight", torch.zeros(8, 8))


def test_training_rounds_what_the_recipe_small_does() -> None:
    recipe = load_recipe("onnx", "small")
    assert (recipe.bits, recipe.block, recipe.search) == (BITS, BLOCK, True)
    for part in ("transformer", "depformer"):
        name = f"{part}.layers.0.self_attn.in_projs.0.weight"
        assert recipe.bits_of(name) == BITS
        assert is_rounded(name, torch.zeros(8, 8))
    for other in ("text_linear.weight", "emb.3.weight", "depformer_in.0.weight", "linears.2.weight"):
        assert recipe.bits_of(other) != BITS
        assert not is_rounded(other, torch.zeros(8, 8))


def test_a_step_sees_rounded_weights_and_changes_those_behind_them() -> None:
    net = Net()
    before, plain = net.matrix.detach().clone(), net.linear.weight.detach().clone()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    rounding = Rounding(net)
    optimizer.register_step_pre_hook(rounding.restore)
    rounding.apply()
    seen = net.matrix.detach().clone()
    assert levels(seen) <= 1 << BITS < levels(before)
    shipped = round_matrix(before.numpy(), BITS, BLOCK, search=True).values()
    assert torch.equal(seen, torch.from_numpy(shipped))
    assert torch.equal(net.linear.weight, plain)
    net(torch.ones(1, 80)).sum().backward()
    gradient = net.matrix.grad
    assert gradient is not None
    optimizer.step()
    torch.testing.assert_close(net.matrix.detach(), before - 0.01 * gradient)


def test_what_was_rounded_loses_little_more_in_graphs_of_that_recipe() -> None:
    net = Net()
    before = net.matrix.detach().clone()
    round_in_blocks(net)
    published = net.matrix.detach().to(torch.bfloat16).float()
    again = torch.from_numpy(round_matrix(published.numpy(), BITS, BLOCK, search=True).values())
    assert float((published - before).norm() / before.norm()) > 0.05
    assert float((again - published).norm() / published.norm()) < 0.02


def test_restoring_twice_changes_nothing() -> None:
    net = Net()
    before = net.matrix.detach().clone()
    rounding = Rounding(net)
    rounding.restore()
    rounding.apply()
    rounding.restore()
    rounding.restore()
    assert torch.equal(net.matrix, before)
