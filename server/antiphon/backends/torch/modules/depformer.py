"""The depth transformer: one frame's audio tokens, one codebook after the other.

Its sequence is the codebooks of a single frame, so its keys and values live within one call and are no
part of the state. Steps have their own weights, shared between steps where a schedule says so.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from antiphon.backends.torch.kernels.fused import is_fused
from antiphon.backends.torch.kernels.layers import load_steps
from antiphon.backends.torch.modules.attention import PLAIN, Compute
from antiphon.backends.torch.modules.depformer_parts import Chooser, DepformerParts, Past
from antiphon.backends.torch.modules.linear import Linear
from antiphon.models.architecture import DepformerConfig


class Depformer(DepformerParts):
    """Generates ``steps`` audio tokens from the main transformer's output and the text token."""

    def __init__(self, config: DepformerConfig, compute: Compute = PLAIN) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__(config, compute)
        # The attention of the language model is asked for by name; these heads need not suit its kernels.
        self._attention = "torch" if compute.attention == "torch" else "auto"

    def join_inputs(self) -> None:
        """Lay the inputs' weights side by side for kernels: all read one vector, so one product makes all."""
        linears = [linear for linear in self.inputs if isinstance(linear, Linear) and linear.bias is None]
        if len(linears) < len(self.inputs) or not linears:
            return
        if is_fused(self._attention, linears[0].weight.device, self.config.head_dim):
            self.joined_inputs = torch.cat([linear.weight for linear in linears])
            for linear, part in zip(linears, self.joined_inputs.split(self.config.dim), strict=True):
                linear.weight = nn.Parameter(part, requires_grad=False)

    def forward(self, hidden: Tensor, text_tokens: Tensor, choose: Chooser) -> Tensor:
        """Hidden ``[n, 1, hidden_dim]`` and text tokens int64 ``[n]`` to audio tokens int64 ``[n, steps]``.

        ``choose`` samples each step's logits, in their dtype.
        """
        if is_fused(self._attention, hidden.device, self.config.head_dim):
            fused: Tensor = load_steps().depformer_steps(self, hidden, text_tokens, choose)
            return fused
        pasts: list[Past | None] = [None] * len(self.layers)
        chosen = [text_tokens]
        for step in range(self.config.steps):
            which = self.config.schedule[step]
            embed = self.text_emb if step == 0 else self.emb[step - 1]
            x = self.inputs[which if self.config.multi_linear else 0](hidden) + embed(chosen[-1])[:, None]
            for index, layer in enumerate(self.layers):
                x, pasts[index] = layer(x, which, pasts[index])
            logits = self.linears[step](self.norms[step](x))[:, 0]
            chosen.append(choose(step, logits))
        return torch.stack(chosen[1:], dim=1)
