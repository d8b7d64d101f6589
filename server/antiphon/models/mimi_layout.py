"""The names of tensors in published Mimi files, and what our modules call them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from antiphon.errors import CheckpointFormatError

USAGE_FLOOR: Final = 1e-5
"""What a codebook's usage is at least, before its averages are divided by it."""

_CODEBOOK: Final = re.compile(r"quantizer\.(rvq_first|rvq_rest)\.vq\.layers\.(\d+)\._codebook\.(\w+)")
_PROJECTION: Final = re.compile(r"quantizer\.\w+\.(in|out)put_proj\.weight")
_TOTALS: Final = ("embedding_sum", "embed_sum", "embed_avg")
_USAGES: Final = ("cluster_usage", "cluster_size")
_RENAMES: Final = (
    (re.compile(r"\.conv\.conv\."), "."),
    (re.compile(r"\.convtr\.convtr\."), "."),
    (re.compile(r"^(downsample)\.conv\."), r"\1."),
    (re.compile(r"^(upsample)\.convtr\."), r"\1."),
    (re.compile(r"_transformer\.transformer\."), "_transformer."),
    (re.compile(r"\.in_proj_weight$"), ".in_proj.weight"),
    (re.compile(r"\.(in|out)_projs\.0\."), r".\1_proj."),
)
_LINEAR: Final = re.compile(r"\.(linear[12])\.")


@dataclass(frozen=True, slots=True)
class Codebook:
    """One level of "rvq_first" or "rvq_rest": its entries are the tensor ``total`` over ``usage``."""

    part: str
    level: int
    total: str
    usage: str


def find_codebooks(names: Iterable[str]) -> list[Codebook]:
    """All codebooks of a file, by part and level.

    Raises:
        CheckpointFormatError: one lacks its averages, or how often they were used.
    """
    books: dict[tuple[str, int], dict[str, str]] = {}
    for name in names:
        if found := _CODEBOOK.fullmatch(name):
            books.setdefault((found[1], int(found[2])), {})[found[3]] = name
    return [_codebook(part, level, book) for (part, level), book in sorted(books.items())]


def _codebook(part: str, level: int, book: dict[str, str]) -> Codebook:
    total, usage = (next((book[key] for key in keys if key in book), None) for keys in (_TOTALS, _USAGES))
    if total is None or usage is None:
        raise CheckpointFormatError(f"a Mimi codebook has only {sorted(book)}")
    return Codebook(part, level, total, usage)


def own_names(names: Iterable[str], feed_forward: str) -> dict[str, str]:
    """Our name for each published one but the codebooks'; ``feed_forward`` is a layer's block."""
    renamed: dict[str, str] = {}
    for name in names:
        if _CODEBOOK.fullmatch(name):
            continue
        own = _LINEAR.sub(rf".{feed_forward}.\1.", name)
        for pattern, replacement in _RENAMES:
            own = pattern.sub(replacement, own)
        renamed[name] = own
    return renamed


def is_projection(name: str) -> bool:
    """Whether a tensor ``[out, in, 1]`` is a matrix, between latents and codebooks."""
    return _PROJECTION.fullmatch(name) is not None
