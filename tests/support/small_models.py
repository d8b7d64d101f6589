"""Small models of every published shape: their arguments, and upstream's modules with seeded weights.

The weights are random and scaled so that the outputs are lively: codes follow the audio, tokens vary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from moshi.models.compression import MimiModel
from moshi.models.lm import LMModel
from moshi.models.loaders import get_mimi, get_moshi_lm
from torch import nn

SAMPLE_RATE = 24000

TRANSFORMER: Mapping[str, Any] = {
    "hidden_scale": 4,
    "causal": True,
    "layer_scale": None,
    "max_period": 10000,
    "gating": "silu",
    "norm": "rms_norm_f32",
    "positional_embedding": "rope",
}
DEPFORMER: Mapping[str, Any] = {
    "depformer_dim": 32,
    "depformer_num_heads": 2,
    "depformer_num_layers": 1,
    "depformer_dim_feedforward": 96,
    "depformer_layer_scale": None,
    "depformer_multi_linear": True,
    "depformer_max_period": 10000,
    "depformer_gating": "silu",
    "depformer_pos_emb": "none",
    "depformer_weights_per_step": True,
}
SMALL: Mapping[str, Any] = {
    "dim": 48,
    "num_layers": 2,
    "num_heads": 4,
    "context": 24,
    "text_card": 256,
    "existing_text_padding_id": 3,
    **TRANSFORMER,
    **DEPFORMER,
}


def _delays(streams_per_voice: int, voices: int, acoustic: int) -> list[int]:
    return [0] + ([0] + [acoustic] * (streams_per_voice - 1)) * voices


KINDS: Mapping[str, Mapping[str, Any]] = {
    "moshi": {"model_type": "moshi", "n_q": 16, "dep_q": 8, "delays": _delays(8, 2, 1)},
    "hibiki": {"model_type": "hibiki", "n_q": 16, "dep_q": 8, "delays": _delays(8, 2, 2)},
    "personaplex": {"model_type": "moshi", "n_q": 16, "dep_q": 16, "delays": _delays(8, 2, 1)},
    "stt": {
        "model_type": "stt",
        "n_q": 8,
        "dep_q": 0,
        "delays": [0] * 9,
        "extra_heads_num_heads": 4,
        "extra_heads_dim": 6,
        "stt_config": {"audio_delay_seconds": 0.48, "audio_silence_prefix_seconds": 0.0},
        "lm_gen_config": {"temp": 0.0, "temp_text": 0.0, "top_k": 250, "top_k_text": 50},
    },
    "tts": {
        "model_type": "tts",
        "n_q": 8,
        "dep_q": 8,
        "delays": _delays(8, 1, 2),
        "depformer_weights_per_step_schedule": [0, 1, 2, 3, 4, 4, 5, 5],
        "depformer_low_rank_embeddings": 16,
        "demux_second_stream": True,
        "cross_attention": True,
        "conditioners": {
            "speaker_wavs": {"type": "tensor", "tensor": {"dim": 16}},
            "cfg": {
                "type": "lut",
                "lut": {"n_bins": 3, "dim": 8, "tokenizer": "noop", "possible_values": ["1.0", "2.0", "3.0"]},
            },
        },
        "fuser": {
            "cross_attention_pos_emb": True,
            "cross_attention_pos_emb_scale": 1,
            "sum": ["cfg"],
            "prepend": [],
            "cross": ["speaker_wavs"],
        },
        "tts_config": {"audio_delay": 0.64, "second_stream_ahead": 2, "speaker_frames": 6},
        "lm_gen_config": {"temp": 0.6, "temp_text": 0.6},
    },
    "codec": {"model_type": "mimi"},
}


def mimi_config(*, codebooks: int = 8, card: int = 64, dim: int = 32, context: int = 16) -> dict[str, Any]:
    """A Mimi of about 0.1 M parameters: 1920 samples a frame, ``codebooks`` levels of ``card`` entries."""
    seanet = {
        "channels": 1, "dimension": dim, "causal": True, "n_filters": 4, "n_residual_layers": 1,
        "activation": "ELU", "compress": 2, "dilation_base": 2, "disable_norm_outer_blocks": 0,
        "kernel_size": 7, "residual_kernel_size": 3, "last_kernel_size": 3, "norm": "none",
        "pad_mode": "constant", "ratios": [8, 6, 5, 4], "true_skip": True,
    }  # fmt: skip
    quantizer = {
        "dimension": 16,
        "n_q": codebooks,
        "bins": card,
        "input_dimension": dim,
        "output_dimension": dim,
    }
    transformer = {
        "d_model": dim, "num_heads": 2, "num_layers": 1, "causal": True, "layer_scale": 0.01,
        "context": context, "conv_layout": True, "max_period": 10000, "gating": "none", "norm": "layer_norm",
        "positional_embedding": "rope", "dim_feedforward": 2 * dim, "input_dimension": dim,
        "output_dimensions": [dim],
    }  # fmt: skip
    return {
        "sample_rate": SAMPLE_RATE, "channels": 1, "frame_rate": 12.5,
        "seanet": seanet, "quantizer": quantizer, "transformer": transformer,
    }  # fmt: skip


def make_lm(arguments: Mapping[str, Any]) -> LMModel:
    """An upstream language model with these arguments, in float32, its weights drawn from torch's generator.

    Upstream's own initialisation leaves some layers at defaults meant for other sizes; here every matrix
    keeps the variance of its input, and the heads are loud enough that one token clearly wins.
    """
    lm = get_moshi_lm(None, json.loads(json.dumps(arguments)), device="cpu", dtype=torch.float32)
    for module in lm.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0, 1 / math.sqrt(module.in_features))
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(0, 1)
    for head in [lm.text_linear, *lm.linears, *lm.extra_heads]:
        head.weight.mul_(3)
    return lm


def make_mimi(config: Mapping[str, Any]) -> MimiModel:
    """An upstream Mimi with random weights, its codebooks and loudness fitted to a test signal."""
    codec = get_mimi(None, dict(config), num_codebooks=config["quantizer"]["n_q"])
    for module in codec.modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            fan_in = module.weight.shape[1] * module.kernel_size[0]
            if isinstance(module, nn.ConvTranspose1d):
                fan_in = module.weight.shape[0] // module.groups * module.kernel_size[0] // module.stride[0]
            module.weight.normal_(0, 1.3 / math.sqrt(fan_in))
            if module.bias is not None:
                module.bias.normal_(0, 0.05)
        elif isinstance(module, nn.Linear):
            module.weight.normal_(0, 1 / math.sqrt(module.in_features))
    pcm = trial_signal(2 * SAMPLE_RATE)[None, None]
    _fit_codebooks(codec.quantizer, codec._encode_to_unquantized_latent(pcm))
    decoded = codec.decode(codec.encode(pcm)[:, :, :8])
    last = [module for module in codec.decoder.modules() if isinstance(module, nn.Conv1d)][-1]
    last.weight.mul_(0.1 / decoded.std())
    assert last.bias is not None
    last.bias.zero_()
    return codec


def _fit_codebooks(quantizer: Any, latent: torch.Tensor) -> None:
    """Draw every codebook of a split RVQ around the residuals it will see, so that codes vary."""
    for part in (quantizer.rvq_first, quantizer.rvq_rest):
        residual = part.input_proj(latent)[0].T
        for layer in part.vq.layers:
            codebook = layer._codebook
            draw = torch.randn(codebook.codebook_size, codebook.dim)
            codebook.embedding_sum.copy_(residual.mean(0) + residual.std(0) * draw)
            codebook._initialized.fill_(1)
            residual = residual - codebook.decode(codebook.encode(residual))


def trial_signal(samples: int) -> torch.Tensor:
    """Mono float32 at 24 kHz: a gliding tone with vibrato, under noise that comes and goes."""
    time_s = torch.arange(samples) / SAMPLE_RATE
    tone = torch.sin(2 * math.pi * (180 * time_s + 40 * time_s**2) + 3 * torch.sin(30 * time_s))
    noise = torch.randn(samples) * (0.5 + 0.5 * torch.sin(9 * time_s))
    return 0.2 * tone + 0.1 * noise


def published_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Fuse each attention's projections into one tensor, as the published files have it."""
    fused: dict[str, list[torch.Tensor]] = {}
    for name, value in tensors.items():
        head, _, tail = name.partition(".in_projs.")
        if tail:
            name = f"{head}.in_proj_weight"
        head, _, tail = name.partition(".out_projs.")
        if tail:
            name = f"{head}.out_proj.weight"
        fused.setdefault(name, []).append(value)
    return {name: torch.cat(parts).contiguous() for name, parts in fused.items()}
