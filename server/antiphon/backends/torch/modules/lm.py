"""The language model: every stream's tokens in, text logits and a hidden vector out, then the depformer.

Défossez et al. 2024, "Moshi: a speech-text foundation model for real-time dialogue", section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.backends.published import demuxes, depth_transformer, temporal_transformer
from antiphon.backends.torch.kernels.fused import is_fused
from antiphon.backends.torch.modules.attention import TransformerConfig
from antiphon.backends.torch.modules.depformer import Depformer, DepformerConfig
from antiphon.backends.torch.modules.embedding import StreamEmbeddings, TokenEmbedding
from antiphon.backends.torch.modules.linear import Linear, pack_linears
from antiphon.backends.torch.modules.norms import make_norm
from antiphon.backends.torch.modules.transformer import StreamingTransformer
from antiphon.backends.torch.quantised.fp8 import expand_fp8
from antiphon.backends.torch.quantised.int4 import Int4Linear
from antiphon.backends.torch.quantised.int8 import int8_linears, quantize_linears
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import Step
from antiphon.errors import UnsupportedError


def transformer_config(config: Mapping[str, Any], dtype: torch.dtype, **options: Any) -> TransformerConfig:
    """The temporal transformer's shape from published LM arguments; ``options`` are our own fields.

    Raises:
        UnsupportedError: an option no published model uses.
    """
    fixed = {"causal": True, "norm_emb": False, "skip_self_attn": False}
    for key, wanted in fixed.items():
        if config.get(key, wanted) != wanted:
            raise UnsupportedError(f"{key} is {config[key]!r}; only {wanted!r} can be run")
    return TransformerConfig(
        **temporal_transformer(config),
        cross_attention=config.get("cross_attention", False),
        dtype=dtype,
        **options,
    )


def depformer_config(
    config: Mapping[str, Any], steps: int, dtype: torch.dtype, attention: str = "torch"
) -> DepformerConfig:
    """The depth transformer's shape for its first ``steps`` steps, from published LM arguments.

    Raises:
        UnsupportedError: an option no published model uses.
    """
    shape = depth_transformer(config)
    if shape["gating"] == "none":
        raise UnsupportedError("depformer_gating is 'none'; a depformer without gating cannot be run")
    schedule = config.get("depformer_weights_per_step_schedule")
    if not config.get("depformer_weights_per_step", False):
        schedule = [0] * config["dep_q"]
    schedule = tuple(schedule or range(config["dep_q"]))[:steps]
    width = config.get("depformer_dim_feedforward")
    if width is None:
        width = int(config.get("hidden_scale", 4) * config["depformer_dim"])
    widths = tuple(width) if isinstance(width, list | tuple) else (width,) * (max(schedule) + 1)
    return DepformerConfig(
        steps=steps,
        schedule=schedule,
        feed_forward=widths[: max(schedule) + 1],
        multi_linear=config.get("depformer_multi_linear", False),
        **shape,
        dtype=dtype,
        attention="torch" if attention == "torch" else "auto",  # its heads need not suit the kernels
    )


class LanguageModel(nn.Module):
    """A Moshi-family model from published arguments, generating the first ``steps`` audio streams.

    ``steps`` may be lower than ``dep_q``: PersonaPlex's weights hold steps that nobody hears, and these
    are neither loaded nor run. ``condition [1, dim]``, where there is one, is added to every input.
    """

    condition: Tensor | None

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        steps: int,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> None:
        """Shape the model; its weights come with the checkpoint.

        ``options`` are TransformerConfig's ``cross_positions``, ``kv_dtype``, ``int8_kv`` and ``attention``.
        """
        super().__init__()
        dim, text_card = config["dim"], config["text_card"]
        self.config, self.steps, self.dtype = dict(config), steps, dtype
        shape = transformer_config(config, dtype, **options)
        self.audio_emb = StreamEmbeddings(config["n_q"], config["card"] + 1, dim, dtype)
        self.text_emb = TokenEmbedding(text_card + 1, dim, dtype, demux=demuxes(config))
        self.transformer = StreamingTransformer("lm", shape)
        self.out_norm = make_norm(shape.norm, dim, dtype)
        text_out = config.get("text_card_out") or text_card
        self.text_linear = Linear(dim, text_out, bias=config.get("bias_proj", False), dtype=dtype)
        heads, width = config.get("extra_heads_num_heads", 0), config.get("extra_heads_dim", 6)
        self.extra_heads = nn.ModuleList(Linear(dim, width, dtype=dtype) for _ in range(heads))
        deep = depformer_config(config, steps, dtype, shape.attention) if steps else None
        self.depformer = None if deep is None else Depformer(deep)
        self.condition = None

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the temporal transformer; the depformer keeps none."""
        yield from self.transformer.specs()

    def is_fused(self, device: torch.device) -> bool:
        """Whether one frame runs by Triton kernels there."""
        shape = self.transformer.config
        return is_fused(shape.attention, device, shape.head_dim)

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
        return self.eval()

    def forward(self, tokens: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Tokens int64 ``[n, 1 + n_q, T]`` to hidden ``[n, T, dim]`` and text logits ``[n, T, text_card]``.

        Row 0 of the tokens is text. T above 1 is a prompt read in one pass.
        """
        hidden = self.out_norm(self.read(self.embed(tokens), step))
        return hidden, self.text_linear(hidden)

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens int64 ``[n, 1 + n_q, T]`` to the transformer's inputs ``[n, T, dim]``."""
        flat = tokens.transpose(1, 2).flatten(0, 1)
        x: Tensor = self.audio_emb(flat[:, 1:]) + self.text_emb(flat[:, 0])
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
