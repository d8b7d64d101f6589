"""The language model: every stream's tokens in, text logits and a hidden vector out, then the depformer.

Défossez et al. 2024, "Moshi: a speech-text foundation model for real-time dialogue", section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.backends.torch.kernels.layers import load_steps
from antiphon.backends.torch.modules.attention import PLAIN, Compute
from antiphon.backends.torch.modules.depformer import Depformer
from antiphon.backends.torch.modules.embedding import StreamEmbeddings, TokenEmbedding
from antiphon.backends.torch.modules.linear import Linear, pack_linears
from antiphon.backends.torch.modules.norms import make_norm
from antiphon.backends.torch.modules.transformer import StreamingTransformer
from antiphon.backends.torch.quantised.fp8 import expand_fp8
from antiphon.backends.torch.quantised.int4 import Int4Linear
from antiphon.backends.torch.quantised.int8 import int8_linears, quantize_linears
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import Step
from antiphon.models.architecture import LanguageConfig


class LanguageModel(nn.Module):
    """A Moshi-family model from published arguments, generating the first ``steps`` audio streams.

    ``steps`` may be lower than ``dep_q``: PersonaPlex's weights hold steps without audible output, and these
    are neither loaded nor run. ``condition [1, dim]``, where there is one, is added to every input.
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
        """Shape the model; its weights come with the checkpoint."""
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
        """Every state tensor of the temporal transformer; the depformer keeps none."""
        yield from self.transformer.specs()

    def is_fused(self, device: torch.device) -> bool:
        """Whether one frame runs by Triton kernels there."""
        return self.transformer.is_fused(device)

    def prepare(self, *, pack: bool = False, int8: bool = False, rounds_input: bool = True) -> LanguageModel:
        """After loading: make the recipe's linears INT8, and ``pack`` all of them for a CPU.

        ``rounds_input`` false leaves the inputs of INT8 linears as they are; see Int8Linear.
        """
        expand_fp8(self)
        if int8:
            quantize_linears(self)
        for layer in int8_linears(self):
            layer.rounds_input = rounds_input
            if pack and rounds_input:
                layer.pack()
        if pack:
            pack_linears(self)
            for child in self.modules():
                if isinstance(child, Int4Linear):
                    child.pack()
        if self.depformer is not None:
            self.depformer.join_inputs()
        return self.eval()

    def forward(self, tokens: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Tokens int64 ``[n, 1 + n_q, T]`` to hidden ``[n, T, dim]`` and text logits ``[n, T, text_card]``.

        Row 0 of the tokens is text. T above 1 is a prompt read in one pass.
        """
        x = self.read(self.embed(tokens), step)
        if x.shape[1] == 1 and step.in_place and self.is_fused(x.device):
            hidden: Tensor = load_steps().normed(x[:, 0], self.out_norm)[:, None]
        else:
            hidden = self.out_norm(x)
        return hidden, self.text_linear(hidden)

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens int64 ``[n, 1 + n_q, T]`` to the transformer's inputs ``[n, T, dim]``."""
        flat = tokens.transpose(1, 2).flatten(0, 1)
        x: Tensor
        if self.is_fused(tokens.device):
            x = load_steps().tokens_embedded(self.audio_emb, self.text_emb, flat)
        else:
            x = self.audio_emb(flat[:, 1:]) + self.text_emb(flat[:, 0])
        return x.view(-1, tokens.shape[2], x.shape[-1])

    def read(self, inputs: Tensor, step: Step) -> Tensor:
        """Let the transformer see inputs ``[n, T, dim]``; all there is to do where no token is sampled."""
        if self.condition is not None:
            inputs = inputs + self.condition
        out: Tensor = self.transformer(inputs, step)
        return out

    def pause_heads(self, hidden: Tensor) -> Tensor:
        """Probabilities of the extra heads: hidden ``[n, 1, dim]`` to float32 ``[n, heads, width]``."""
        return torch.stack([head(hidden[:, 0]).softmax(dim=-1) for head in self.extra_heads], dim=1).float()
