"""The language model: every stream's tokens in, text logits and a hidden vector out, then the depformer.

Défossez et al. 2024, "Moshi: a speech-text foundation model for real-time dialogue", section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import mlx.core as mx

from antiphon.backends.mlx.depformer import Depformer, DepformerConfig
from antiphon.backends.mlx.embedding import StreamEmbeddings, load_embedding
from antiphon.backends.mlx.matrix import Weights
from antiphon.backends.mlx.norms import load_norm
from antiphon.backends.mlx.state import Step, TensorSpec
from antiphon.backends.mlx.transformer import StreamingTransformer, TransformerConfig
from antiphon.backends.published import demuxes, depth_transformer, temporal_transformer
from antiphon.errors import UnsupportedError
from antiphon.models.mlx_layout import AUDIO_EMBEDDINGS, SLICES, weight_sets

_FIXED = {
    "causal": True,
    "norm_emb": False,
    "skip_self_attn": False,
}


def transformer_config(
    config: Mapping[str, Any], *, int8_kv: bool, cross_positions: int = 0
) -> TransformerConfig:
    """The temporal transformer's shape from published LM arguments.

    Raises:
        UnsupportedError: an option this backend does not run.
    """
    for key, wanted in _FIXED.items():
        if config.get(key, wanted) != wanted:
            raise UnsupportedError(f"{key} is {config[key]!r}; the mlx backend runs only {wanted!r}")
    if bool(config.get("cross_attention")) != bool(cross_positions):
        raise UnsupportedError(
            f"cross_attention is {config.get('cross_attention')!r}, "
            f"but there are {cross_positions} positions of voices to look at"
        )
    return TransformerConfig(
        **temporal_transformer(config),
        int8_kv=int8_kv,
        cross_positions=cross_positions,
    )


def depformer_config(config: Mapping[str, Any], steps: int) -> DepformerConfig:
    """The depth transformer's shape for its first ``steps`` steps, from published LM arguments.

    Raises:
        UnsupportedError: an option no published model uses.
    """
    shape = depth_transformer(config)
    width = config.get("depformer_dim_feedforward")
    if width is None:
        width = int(config.get("hidden_scale", 4) * config["depformer_dim"])
    sets = weight_sets(config, steps)
    widths = tuple(width[which] if isinstance(width, list | tuple) else width for which in sets)
    return DepformerConfig(steps=steps, feed_forward=widths, **shape)


class LanguageModel:
    """A Moshi-family model from published arguments, generating the first ``steps`` audio streams.

    ``steps`` may be lower than ``dep_q``: PersonaPlex's weights hold steps that nobody hears, and these
    are neither loaded nor run. ``condition [1, dim]``, where there is one, is added to every input.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        steps: int,
        weights: Weights,
        int8_kv: bool = False,
        cross_positions: int = 0,
    ) -> None:
        """Take the weights."""
        dim, text_card, dtype = config["dim"], config["text_card"], weights.dtype
        self.steps, self.dtype = steps, dtype
        self.shape = transformer_config(config, int8_kv=int8_kv, cross_positions=cross_positions)
        self.audio_emb = StreamEmbeddings(weights, AUDIO_EMBEDDINGS, config["n_q"], config["card"] + 1, dim)
        self.text_emb = load_embedding(weights, "text_emb", text_card + 1, dim, demux=demuxes(config))
        self.transformer = StreamingTransformer("lm", self.shape, weights, "transformer")
        self.out_norm = load_norm(self.shape.norm, weights, "out_norm", dim)
        text_out = config.get("text_card_out") or text_card
        self.text_linear = weights.linear("text_linear", dim, text_out, bias=config.get("bias_proj", False))
        heads, width = config.get("extra_heads_num_heads", 0), config.get("extra_heads_dim", 6)
        self.extra_heads = [weights.linear(f"extra_heads.{i}", dim, width) for i in range(heads)]
        self.depformer = Depformer(depformer_config(config, steps), weights, SLICES) if steps else None
        self.condition: mx.array | None = None

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the temporal transformer; the depformer keeps none."""
        yield from self.transformer.specs()

    def compile(self) -> None:
        """Have mlx fuse the layers, from the next call on."""
        self.transformer.compile()
        if self.depformer is not None:
            self.depformer.compile()

    def __call__(self, tokens: mx.array, step: Step) -> tuple[mx.array, mx.array]:
        """Tokens int32 ``[n, 1 + n_q]``, text first, to hidden ``[n, 1, dim]``, logits ``[n, text_card]``."""
        hidden = self.out_norm(self.read(self.embed(tokens)[:, None], step))
        return hidden, self.text_linear(hidden)[:, 0]

    def embed(self, tokens: mx.array) -> mx.array:
        """Tokens int32 ``[n, 1 + n_q]`` to the transformer's inputs ``[n, dim]``."""
        return self.audio_emb(tokens[:, 1:]) + self.text_emb(tokens[:, 0])

    def read(self, inputs: mx.array, step: Step) -> mx.array:
        """Let the transformer see inputs ``[n, T, dim]``; all there is to do where no token is sampled."""
        return self.transformer(inputs if self.condition is None else inputs + self.condition, step)

    def pause_heads(self, hidden: mx.array) -> mx.array:
        """Probabilities of the extra heads: hidden ``[n, 1, dim]`` to float32 ``[n, heads, width]``."""
        heads = [mx.softmax(head(hidden[:, 0]).astype(mx.float32), axis=-1) for head in self.extra_heads]
        return mx.stack(heads, axis=1)
