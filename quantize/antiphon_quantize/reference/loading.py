"""Upstream's own loaders, given a checkpoint's local files."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from moshi.models.compression import MimiModel
from moshi.models.lm import LMModel
from moshi.models.loaders import get_mimi, get_moshi_lm
from moshi.run_inference import get_condition_tensors

from antiphon.backends.loading_errors import as_checkpoint_error
from antiphon.errors import UnsupportedError

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint


def load_mimi(checkpoint: Checkpoint, device: torch.device) -> MimiModel:
    """Load Mimi, always float32, with as many codebooks as the model uses."""
    spec = checkpoint.spec.mimi
    config = deepcopy(dict(spec.config)) or None  # None is upstream's full-size Mimi
    with as_checkpoint_error(checkpoint.spec.name, torch.OutOfMemoryError):
        return get_mimi(checkpoint.file("mimi"), config, device=device, num_codebooks=spec.codebooks)


def load_lm(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> LMModel:
    """Load the language model, fine-tuning merged in, with the corrections upstream makes after loading.

    Raises UnsupportedError for upstream's own INT8 files, whose scales its loader rounds to the dtype, and
    CheckpointFormatError where the weights and the configuration do not fit each other.
    """
    assert checkpoint.spec.lm is not None
    config = deepcopy(dict(checkpoint.spec.lm.config))
    if config.get("quantize"):
        raise UnsupportedError(
            "moshi 0.2.13 cannot load its own INT8 checkpoints correctly; use the bf16 one"
        )
    lora = checkpoint.files.get("lora")
    with as_checkpoint_error(checkpoint.spec.name, torch.OutOfMemoryError):
        model = get_moshi_lm(
            checkpoint.file("lm"), config, device=device, dtype=dtype, lora_weights=lora, fuse_lora=True
        )
    if checkpoint.spec.family == "hibiki":
        # As upstream: an end of text sampled too early is heard by the model as padding.
        model.text_emb.weight.data[2] = model.text_emb.weight.data[3]
    return model


def sum_condition(model: LMModel, family: str) -> torch.Tensor | None:
    """Compute what a conditioned model (Hibiki) adds to every step's input: ``[1, 1, dim]``, or None.

    Raises UnsupportedError when the model is conditioned in a way only its own program knows.
    """
    if model.fuser is None:
        return None
    try:
        conditions = get_condition_tensors(family, model, batch_size=1, cfg_coef=1.0)
    except RuntimeError as error:
        raise UnsupportedError(str(error)) from error
    if model.fuser.get_cross(conditions) is not None:
        raise UnsupportedError("the reference backend runs no model with cross-attention")
    condition = model.fuser.get_sum(conditions)
    return None if condition is None else condition.to(model.dtype)
