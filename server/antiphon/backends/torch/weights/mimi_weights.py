"""From published safetensors to our parameter names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.errors import CheckpointFormatError

_CODEBOOK = re.compile(r"quantizer\.(rvq_first|rvq_rest)\.vq\.layers\.(\d+)\._codebook\.(\w+)")
_USAGE_FLOOR = 1e-5

_MIMI_RENAMES = (
    (re.compile(r"\.conv\.conv\."), "."),
    (re.compile(r"\.convtr\.convtr\."), "."),
    (re.compile(r"^(downsample)\.conv\."), r"\1."),
    (re.compile(r"^(upsample)\.convtr\."), r"\1."),
    (re.compile(r"_transformer\.transformer\."), "_transformer."),
    (re.compile(r"\.self_attn\.in_proj_weight$"), ".self_attn.in_proj.weight"),
    (re.compile(r"\.(in|out)_projs\.0\."), r".\1_proj."),
    (re.compile(r"\.(linear[12])\."), r".feed_forward.\1."),
)


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
    books: dict[str, dict[int, dict[str, Tensor]]] = {"rvq_first": {}, "rvq_rest": {}}
    for name, tensor in published.items():
        if found := _CODEBOOK.fullmatch(name):
            part, level, what = found.groups()
            books[part].setdefault(int(level), {})[what] = tensor
            continue
        if re.fullmatch(r"quantizer\.\w+\.(in|out)put_proj\.weight", name):
            tensor = tensor.squeeze(-1)
        renamed[rename(name, _MIMI_RENAMES)] = tensor
    semantic = len(books["rvq_first"])
    for part, levels in (("rvq_first", semantic), ("rvq_rest", codebooks - semantic)):
        tables = [_table(books[part][level]) for level in range(levels)]
        renamed[f"quantizer.{part}.tables"] = torch.stack(tables)
        renamed[f"quantizer.{part}.half_norms"] = torch.zeros(levels, tables[0].shape[0])
    return renamed


def _table(book: Mapping[str, Tensor]) -> Tensor:
    total = book.get("embedding_sum", book.get("embed_sum", book.get("embed_avg")))
    usage = book.get("cluster_usage", book.get("cluster_size"))
    if total is None or usage is None:
        raise CheckpointFormatError(f"a Mimi codebook has only {sorted(book)}")
    return total / usage.clamp(min=_USAGE_FLOOR)[:, None]


def rename(name: str, renames: tuple[tuple[re.Pattern[str], str], ...]) -> str:
    """Apply ``(pattern, replacement)`` pairs to a name, in order."""
    for pattern, replacement in renames:
        name = pattern.sub(replacement, name)
    return name


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
