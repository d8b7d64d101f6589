"""The reference: one caller on upstream's loop and loader, at batch 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from moshi.models import loaders
from moshi.models.compression import MimiModel
from moshi.models.lm import LMGen, LMModel
from moshi.run_inference import get_condition_tensors
from moshi.utils.compile import no_compile

from antiphon.backends.base import NO_TOKEN, FloatArray
from antiphon.models.checkpoint import Checkpoint
from tests.backends.contract import Reply

DESCRIBED: dict[str, Any] = {
    "conditioners": {
        "description": {
            "type": "lut",
            "lut": {"n_bins": 2, "dim": 8, "tokenizer": "noop", "possible_values": ["very_bad", "very_good"]},
        }
    },
    "fuser": {"cross_attention_pos_emb": False, "sum": ["description"], "prepend": [], "cross": []},
}
"""How Hibiki is told what quality its speech should have: arguments of its language model."""


def load(checkpoint: Checkpoint) -> tuple[MimiModel, LMModel | None]:
    """Load a checkpoint in float32 the way ``moshi.server`` does, every file given as a Path."""
    files = checkpoint.files
    if checkpoint.spec.lm is None:
        config = dict(checkpoint.spec.mimi.config)
        return loaders.get_mimi(files["mimi"], config, num_codebooks=checkpoint.spec.mimi.codebooks), None
    info = loaders.CheckpointInfo.from_hf_repo(
        "nowhere/nothing",
        moshi_weights=files["lm"],
        mimi_weights=files["mimi"],
        tokenizer=files["tokenizer"],
        config_path=files["config"],
        mimi_config_path=Path(files["mimi_config"]),
    )
    return info.get_mimi(), info.get_moshi(dtype=torch.float32)


def converse(mimi: MimiModel, lm: LMModel | None, frames: FloatArray) -> list[Reply]:
    """Send frames, float32 ``[N, frame_samples]``, through upstream's loop, greedily, from a fresh state."""
    with torch.no_grad(), no_compile(), mimi.streaming(1):
        if lm is None:
            return [_reply(_decode(mimi, mimi.encode(_frame(frame))), NO_TOKEN) for frame in frames]
        conditions = get_condition_tensors("hibiki", lm, batch_size=1, cfg_coef=1.0)
        generator = LMGen(lm, use_sampling=False, condition_tensors=conditions)
        with generator.streaming(1):
            return [_turn(mimi, generator, frame, is_first=index == 0) for index, frame in enumerate(frames)]


def _turn(mimi: MimiModel, generator: LMGen, frame: FloatArray, *, is_first: bool) -> Reply:
    codes = mimi.encode(_frame(frame))
    if is_first:
        mimi.reset_streaming()
    tokens = generator.step(codes)
    if tokens is None:
        return Reply(consumed=True, emitted=False, pcm=None, text_token=NO_TOKEN)
    return _reply(_decode(mimi, tokens[:, 1:]), int(tokens[0, 0, 0]))


def _frame(frame: FloatArray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(frame))[None, None]


def _decode(mimi: MimiModel, codes: torch.Tensor) -> FloatArray:
    pcm: FloatArray = mimi.decode(codes)[0, 0].numpy()
    return pcm


def _reply(pcm: FloatArray, text_token: int) -> Reply:
    return Reply(consumed=True, emitted=True, pcm=pcm.copy(), text_token=text_token)
