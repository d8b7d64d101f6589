"""The language model: tokens of every stream become text logits and a hidden vector, from which the depformer
generates audio tokens.

Défossez et al. 2024, "Moshi: a speech-text foundation model for real-time dialogue", section 3.4. The
depformer (depth transformer) runs over the codebooks of a single frame. Its keys and values exist only within
one call and are not part of the state. Steps have separate weights, or share them if a schedule defines it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.kernels.fused import is_fused, load_rows
from antiphon.backends.torch.modules.attention import (
    PLAIN,
    Chooser,
    Compute,
    DepformerParts,
    Past,
)
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.modules.layers import (
    Linear,
    StreamEmbeddings,
    TokenEmbedding,
    make_norm,
    pack_linears,
)
from antiphon.backends.torch.modules.transformer import StreamingTransformer, load_steps
from antiphon.backends.torch.quantised import expand_fp8, int4_linears, int8_linears, quantize_linears
from antiphon.backends.torch.state import Step
from antiphon.models.architecture import DepformerConfig, LanguageConfig


class Depformer(DepformerParts):
    """Generates ``steps`` audio tokens from the main transformer's output and the text token."""

    def __init__(self, config: DepformerConfig, compute: Compute = PLAIN) -> None:
        """Make the layers without weights, which are loaded later."""
        super().__init__(config, compute)
        # The attention of the language model is requested by name; its kernels may not support these heads.
        self._attention = "torch" if compute.attention == "torch" else "auto"

    def join_inputs(self) -> None:
        """Concatenate the weights of the inputs for the kernels. All inputs read the same vector, so one
        product computes all of them.
        """
        linears = [linear for linear in self.inputs if isinstance(linear, Linear) and linear.bias is None]
        if len(linears) < len(self.inputs) or not linears:
            return
        if self._is_fused(linears[0].weight.device):
            self.joined_inputs = torch.cat([linear.weight for linear in linears])
            for linear, part in zip(linears, self.joined_inputs.split(self.config.dim), strict=True):
                linear.weight = nn.Parameter(part, requires_grad=False)

    def _is_fused(self, device: torch.device) -> bool:
        return is_fused(self._attention, device, self.config.head_dim, KVForm.COMPUTE)  # it has no ring

    def forward(self, hidden: Tensor, text_tokens: Tensor, choose: Chooser) -> Tensor:
        """Map hidden ``[n, 1, hidden_dim]`` and text tokens int64 ``[n]`` to audio tokens int64 ``[n,
        steps]``.

        ``choose`` samples each step's logits, in their dtype.
        """
        if self._is_fused(hidden.device):
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


class LanguageModel(nn.Module):
    """A Moshi-family model from published arguments, generating the first ``steps`` audio streams.

    ``steps`` may be lower than ``dep_q``: PersonaPlex's weights contain steps without audible output, which
    this class neither loads nor runs. ``condition [1, dim]``, if given, is added to every input.
    """

    condition: Tensor | None

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        steps: int,
        cross_positions: int = 0,
        compute: Compute = PLAIN,
    ) -> None:
        """Make the model without weights, which are loaded later."""
        super().__init__()
        shape, dtype = LanguageConfig.from_published(config, steps, cross_positions), compute.dtype
        self.config, self.steps, self.dtype, dim = dict(config), steps, dtype, shape.dim
        self.audio_emb = StreamEmbeddings(shape.streams, shape.card + 1, dim, dtype)
        self.text_emb = TokenEmbedding(shape.text_card + 1, dim, dtype, demux=shape.demux)
        self.transformer = StreamingTransformer("lm", shape.transformer, compute)
        self.out_norm = make_norm(shape.transformer.norm, dim, dtype)
        self.text_linear = Linear(dim, shape.text_out, bias=shape.bias, dtype=dtype)
        self.extra_heads = nn.ModuleList(
            Linear(dim, shape.pause_width, dtype=dtype) for _ in range(shape.pause_heads)
        )
        self.depformer = None if shape.depformer is None else Depformer(shape.depformer, compute)
        self.condition = None

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the temporal transformer; the depformer has none."""
        yield from self.transformer.specs()

    def is_fused(self, device: torch.device) -> bool:
        """Whether one frame runs on Triton kernels on that device."""
        return self.transformer.is_fused(device)

    def prepare(
        self,
        *,
        pack: bool = False,
        int8: bool = False,
        rounds_input: bool | None = None,
        device: torch.device | None = None,
    ) -> LanguageModel:
        """Finish loading: with ``int8`` make the recipe's linears INT8, with ``pack`` pack the linears for a
        CPU.

        ``rounds_input``: whether inputs of INT8 and INT4 linears are rounded; None rounds only inputs of INT8
        linears. The model moves to ``device``, its linears one by one as they are rounded.
        """
        expand_fp8(self)
        if int8:
            quantize_linears(self, device=device)
        if device is not None:
            self.to(device)
            self.condition = None if self.condition is None else self.condition.to(device)
        for layer in int8_linears(self):
            layer.rounds_input = rounds_input is not False
            if pack and layer.rounds_input:
                layer.pack()
        if pack:
            pack_linears(self)
        for four in int4_linears(self):
            four.rounds_input = bool(rounds_input)
            if four.rounds_input and self.is_fused(four.weight.device):
                four.pair(load_rows().rows_through)
            elif pack:
                four.pack()
        if self.depformer is not None:
            self.depformer.join_inputs()
        return self.eval()

    def forward(self, tokens: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Map tokens int64 ``[n, 1 + n_q, T]`` to hidden ``[n, T, dim]`` and text logits ``[n, T,
        text_card]``.

        Row 0 of the tokens is text. T is above 1 when a prompt is read in one pass.
        """
        x = self.read(self.embed(tokens), step)
        if x.shape[1] == 1 and step.in_place and self.is_fused(x.device):
            hidden: Tensor = load_steps().normed(x[:, 0], self.out_norm)[:, None]
        else:
            hidden = self.out_norm(x)
        return hidden, self.text_linear(hidden)

    def embed(self, tokens: Tensor) -> Tensor:
        """Map tokens int64 ``[n, 1 + n_q, T]`` to the transformer's inputs ``[n, T, dim]``."""
        flat = tokens.transpose(1, 2).flatten(0, 1)
        x: Tensor
        if self.is_fused(tokens.device):
            x = load_steps().tokens_embedded(self.audio_emb, self.text_emb, flat)
        else:
            x = self.audio_emb(flat[:, 1:]) + self.text_emb(flat[:, 0])
        return x.view(-1, tokens.shape[2], x.shape[-1])

    def read(self, inputs: Tensor, step: Step) -> Tensor:
        """Process inputs ``[n, T, dim]`` with the transformer only, for steps without sampling."""
        if self.condition is not None:
            inputs = inputs + self.condition
        out: Tensor = self.transformer(inputs, step)
        return out

    def pause_heads(self, hidden: Tensor) -> Tensor:
        """Probabilities of the extra heads: hidden ``[n, 1, dim]`` to float32 ``[n, heads, width]``."""
        return torch.stack([head(hidden[:, 0]).softmax(dim=-1) for head in self.extra_heads], dim=1).float()
