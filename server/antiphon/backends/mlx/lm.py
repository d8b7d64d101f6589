"""The language model: every stream's tokens in, text logits and a hidden vector out, then the depformer.

Défossez et al. 2024, "Moshi: a speech-text foundation model for real-time dialogue", section 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import mlx.core as mx

from antiphon.backends.mlx.depformer import Depformer
from antiphon.backends.mlx.embedding import StreamEmbeddings, load_embedding
from antiphon.backends.mlx.matrix import Weights
from antiphon.backends.mlx.norms import load_norm
from antiphon.backends.mlx.state import Step, TensorSpec
from antiphon.backends.mlx.transformer import StreamingTransformer
from antiphon.models.architecture import LanguageConfig
from antiphon.models.mlx_layout import AUDIO_EMBEDDINGS, SLICES


class LanguageModel:
    """A Moshi-family model from published arguments, generating the first ``steps`` audio streams.

    ``steps`` may be lower than ``dep_q``: PersonaPlex's weights hold steps without audible output, and these
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
        shape = LanguageConfig.from_published(config, steps, cross_positions)
        dim, temporal = shape.dim, shape.transformer
        self.steps, self.dtype, self.int8_kv = steps, weights.dtype, int8_kv
        self.audio_emb = StreamEmbeddings(weights, AUDIO_EMBEDDINGS, shape.streams, shape.card + 1, dim)
        self.text_emb = load_embedding(weights, "text_emb", shape.text_card + 1, dim, demux=shape.demux)
        self.transformer = StreamingTransformer("lm", temporal, weights, "transformer", int8_kv=int8_kv)
        self.out_norm = load_norm(temporal.norm, weights, "out_norm", dim)
        self.text_linear = weights.linear("text_linear", dim, shape.text_out, bias=shape.bias)
        self.extra_heads = [
            weights.linear(f"extra_heads.{i}", dim, shape.pause_width) for i in range(shape.pause_heads)
        ]
        self.depformer = None if shape.depformer is None else Depformer(shape.depformer, weights, SLICES)
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
