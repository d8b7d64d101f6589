"""From published safetensors to our parameter names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.errors import CheckpointFormatError
from antiphon.models.mimi_layout import USAGE_FLOOR, find_codebooks, is_projection, own_names


def load_mimi(
    path: Path,
    config: Mapping[str, Any],
    codebooks: int,
    device: torch.device | str = "cpu",
    *,
    attention: str = "torch",
) -> Mimi:
    """Load a published Mimi file for its first ``codebooks`` levels (not prepared yet: see Mimi.prepare).

    It computes in float32, whatever dtype the file keeps its tensors in.

    Raises:
        CheckpointFormatError: tensors are missing, unknown, or of another shape than the config's.
    """
    with torch.device("meta"):
        mimi = Mimi(config, codebooks, attention=attention)
    published = {name: tensor.float() for name, tensor in load_file(path).items()}
    assign(mimi, mimi_tensors(published, codebooks), path)
    return mimi.to(device)


def mimi_tensors(published: Mapping[str, Tensor], codebooks: int) -> dict[str, Tensor]:
    """Rename a published Mimi's tensors and turn its codebook averages into tables."""
    renamed: dict[str, Tensor] = {}
    for name, own in own_names(published, "feed_forward").items():
        tensor = published[name]
        renamed[own] = tensor.squeeze(-1) if is_projection(name) else tensor
    books = find_codebooks(published)
    semantic = sum(book.part == "rvq_first" for book in books)
    for part, levels in (("rvq_first", semantic), ("rvq_rest", codebooks - semantic)):
        used = [book for book in books if book.part == part and book.level < levels]
        tables = [
            published[book.total] / published[book.usage].clamp(min=USAGE_FLOOR)[:, None] for book in used
        ]
        renamed[f"quantizer.{part}.tables"] = torch.stack(tables)
        renamed[f"quantizer.{part}.score_biases"] = torch.zeros(len(tables), tables[0].shape[0])
    return renamed


def assign(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Give a module on the meta device its tensors, every one of them and nothing else.

    Raises:
        CheckpointFormatError: names or shapes do not agree; the message counts and shows them.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or unknown:
        raise CheckpointFormatError(
            f"{path}: {len(missing)} tensors missing {missing[:3]}, {len(unknown)} unknown {unknown[:3]}"
        )
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            raise CheckpointFormatError(
                f"{path}: {name} is {tuple(tensors[name].shape)}, the configuration says {shape}"
            )
    module.load_state_dict(dict(tensors), assign=True)
    module.requires_grad_(False)
