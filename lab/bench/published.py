"""Arguments of published language models, for use without a checkpoint; this module imports nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STT_1B: Mapping[str, Any] = {
    "dim": 2048, "num_layers": 16, "num_heads": 16, "context": 750, "n_q": 32, "dep_q": 0, "card": 2048,
    "text_card": 8000, "hidden_scale": 4.125, "gating": "silu", "norm": "rms_norm_f32", "causal": True,
    "positional_embedding": "rope", "max_period": 100000.0, "layer_scale": None, "delays": [0] * 33,
    "existing_text_padding_id": 3, "extra_heads_num_heads": 4, "extra_heads_dim": 6,
}  # fmt: skip

VOICES_POSITIONS = 625
"""Positions of tts-1.6b's voices: five of 125."""

TTS_1_6B: Mapping[str, Any] = {
    "dim": 2048, "num_layers": 16, "num_heads": 16, "context": 500, "n_q": 32, "dep_q": 32, "card": 2048,
    "text_card": 8000, "hidden_scale": 4.125, "gating": "silu", "norm": "rms_norm_f32", "causal": True,
    "positional_embedding": "rope", "max_period": 10000, "layer_scale": None, "cross_attention": True,
    "demux_second_stream": True, "existing_text_padding_id": 3, "delays": [0, 16, *[18] * 31],
    "depformer_dim": 1024, "depformer_num_heads": 16, "depformer_num_layers": 4,
    "depformer_dim_feedforward": 3072, "depformer_multi_linear": True, "depformer_layer_scale": None,
    "depformer_gating": "silu", "depformer_pos_emb": "none", "depformer_weights_per_step": True,
    "depformer_low_rank_embeddings": 128,
    "depformer_weights_per_step_schedule": [*range(8), *[8] * 8, *[9] * 8, *[10] * 8],
}  # fmt: skip
