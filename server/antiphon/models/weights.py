"""Describes the tensors of safetensors files by their headers, and maps the names in published files to this
package's names.

Format: https://huggingface.co/docs/safetensors (8 bytes of little-endian header size, a JSON object of name
-> dtype, shape, data_offsets, then the data).

Published language models for mlx have the tensor names of kyutai-labs/moshi's ``moshi_mlx``
(``models/lm.py``, ``scripts/import_mlx.py``, ``scripts/quantize_mlx.py``): audio embeddings are
``audio_embs.N``, a norm's ``alpha`` is ``weight``, and each depformer step is a slice with all its weights,
including those that it shares with other steps. A rounded matrix ``X.weight`` is uint32, with ``X.scales``
and ``X.biases``: mlx's affine groups.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from antiphon.errors import CheckpointFormatError
from antiphon.models.architecture import stored_sets, weight_sets

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
FLOATING = frozenset({"F64", "F32", "F16", "BF16"})
_BOOKKEEPING = re.compile(r"\.(_initialized|inited|cluster_usage|cluster_size)$")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's dtype, in the format's spelling ("BF16"), and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def is_floating(self) -> bool:
        """Whether the numbers are floats; packed integers of a quantised layer are not."""
        return self.dtype in FLOATING


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Names, dtypes and shapes of the tensors in a safetensors file, without reading their data.

    Raises CheckpointFormatError: the file has another format, or its size is not that in its header (an
    interrupted download).
    """
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            header_bytes = int.from_bytes(file.read(8), "little")
            if file_bytes < 8 or header_bytes > min(MAX_HEADER_BYTES, file_bytes - 8):
                raise CheckpointFormatError(
                    f"{path} is not a safetensors file: {file_bytes} bytes, header of {header_bytes}"
                )
            header = json.loads(file.read(header_bytes))
            header.pop("__metadata__", None)
            tensors = {
                name: TensorInfo(str(entry["dtype"]), tuple(map(_size, entry["shape"])))
                for name, entry in header.items()
            }
            data_bytes = max((_size(entry["data_offsets"][1]) for entry in header.values()), default=0)
    except OSError as error:
        raise CheckpointFormatError(f"{path} cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise CheckpointFormatError(f"{path} is not a safetensors file: {error!r}") from error
    if file_bytes != 8 + header_bytes + data_bytes:
        raise CheckpointFormatError(
            f"{path} has {file_bytes} bytes, its header says {8 + header_bytes + data_bytes}: fetch it again"
        )
    return tensors


def _size(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a size")
    return value


def count_parameters(tensors: Mapping[str, TensorInfo]) -> int:
    """Number of learned parameters of a model, without the RVQ's usage counts (Mimi: 96.1 million)."""
    return sum(info.elements for name, info in tensors.items() if not _BOOKKEEPING.search(name))


def count_modules(tensors: Mapping[str, TensorInfo], prefix: str) -> int:
    """The number of numbered modules under ``prefix``: 2 for ``emb.0.weight`` and ``emb.1.weight``."""
    start = f"{prefix}."
    numbers = {name[len(start) :].split(".", 1)[0] for name in tensors if name.startswith(start)}
    return sum(number.isdecimal() for number in numbers)


USAGE_FLOOR: Final = 1e-5
"""Lower bound of a codebook's usage, by which its averages are divided."""

_CODEBOOK: Final = re.compile(r"quantizer\.(rvq_first|rvq_rest)\.vq\.layers\.(\d+)\._codebook\.(\w+)")
_PROJECTION: Final = re.compile(r"quantizer\.\w+\.(in|out)put_proj\.weight")
_TOTALS: Final = ("embedding_sum", "embed_sum", "embed_avg")
_USAGES: Final = ("cluster_usage", "cluster_size")
_MIMI_RENAMES: Final = (
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
    """One level of "rvq_first" or "rvq_rest": its entries are the tensor ``total`` divided by ``usage``."""

    part: str
    level: int
    total: str
    usage: str


def find_codebooks(names: Iterable[str]) -> list[Codebook]:
    """All codebooks of a file, by part and level.

    Raises:
        CheckpointFormatError: a codebook has no averages or no usage counts.
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
    """The internal name of each published tensor, except for codebooks; ``feed_forward`` is the name of a
    layer's block.
    """
    renamed: dict[str, str] = {}
    for name in names:
        if _CODEBOOK.fullmatch(name):
            continue
        own = _LINEAR.sub(rf".{feed_forward}.\1.", name)
        for pattern, replacement in _MIMI_RENAMES:
            own = pattern.sub(replacement, own)
        renamed[name] = own
    return renamed


def is_projection(name: str) -> bool:
    """Whether a tensor ``[out, in, 1]`` is a matrix between latents and codebooks."""
    return _PROJECTION.fullmatch(name) is not None


AUDIO_EMBEDDINGS: Final = "audio_embs"
MLX_NAMES: Final = ("model.q8.safetensors", "model.q4.safetensors")
"""File names of rounded language models that have no configuration: with groups of 64, and of 32."""
SLICES: Final = "depformer.slices"
_WORD_BITS: Final = 32
_SLICE: Final = re.compile(r"^depformer\.slices\.(\d+)\.(.*)$")
_PER_SLICE_ALWAYS: Final = ("emb.", "linear_out.", "norm.")
"""Parts of a depformer step that are never shared between steps."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a tensor in a file: rows ``part`` of ``parts`` of the tensor called ``name``.

    ``is_flat``: the tensor is reshaped, because its shape is ``[1, 1, dim]`` instead of ``[dim]``.
    """

    name: str
    part: int = 0
    parts: int = 1
    is_flat: bool = False

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the tensor, given the shape of its source."""
        if self.is_flat:
            return (whole[-1],)
        return (whole[0] // self.parts, *whole[1:])


def is_mlx_layout(header: Mapping[str, TensorInfo]) -> bool:
    """Whether a language model's file has mlx's names."""
    return f"{AUDIO_EMBEDDINGS}.0.weight" in header


def unrounded_parameters(header: Mapping[str, TensorInfo], dim: object) -> int:
    """Number of weights that a rounded language model represents; 0 for a file that is not rounded.

    The number of bits is computed from the first layer, whose rows have ``dim`` numbers. In the published
    files all matrices have the same number of bits. A file with exceptions has a manifest with the count.
    """
    first = header.get("transformer.layers.0.self_attn.in_proj.weight")
    if first is None or first.is_floating or not isinstance(dim, int) or not is_mlx_layout(header):
        return 0
    bits = _WORD_BITS * first.shape[-1] // dim
    count = 0
    for name, info in header.items():
        if name.endswith((".scales", ".biases")) and not header[f"{name[:-7]}.weight"].is_floating:
            continue
        count += info.elements if info.is_floating else info.elements * _WORD_BITS // bits
    return count


def find_sources(
    header: Mapping[str, TensorInfo], config: Mapping[str, Any], steps: int
) -> dict[str, Source]:
    """The source of each tensor of mlx's layout in a file of either layout, for the first ``steps`` slices.

    Slices that share their weights (``depformer_weights_per_step_schedule``) have the same source.
    """
    if is_mlx_layout(header):
        return dict(_from_mlx(header, config, steps))
    return dict(_from_torch(header, config, steps))


def _from_mlx(
    header: Mapping[str, TensorInfo], config: Mapping[str, Any], steps: int
) -> Iterator[tuple[str, Source]]:
    sets = weight_sets(config, steps)
    for name in header:
        found = _SLICE.match(name)
        if found is None:
            yield name, Source(name)
            continue
        step, rest = int(found[1]), found[2]
        if step < steps:
            shared = step if rest.startswith(_PER_SLICE_ALWAYS) else sets.index(sets[step])
            yield name, Source(f"{SLICES}.{shared}.{rest}")


def _from_torch(
    header: Mapping[str, TensorInfo], config: Mapping[str, Any], steps: int
) -> Iterator[tuple[str, Source]]:
    for name in header:
        new = name
        if name.startswith("emb."):
            new = f"{AUDIO_EMBEDDINGS}.{name.removeprefix('emb.')}"
        elif name.startswith(("depformer", "linears.", "fuser.")):
            continue
        elif name.startswith("transformer."):
            new = re.sub(r"\.(in|out)_projs\.0\.", r".\1_proj.", name).replace(
                "in_proj_weight", "in_proj.weight"
            )
            new = re.sub(r"\.(linear[12])\.", r".gating.\1.", new)
        yield new.replace(".alpha", ".weight"), Source(name, is_flat=name.endswith(".alpha"))
    stacks = stored_sets(config)
    for step, which in enumerate(weight_sets(config, steps)):
        yield from _slice_from_torch(header, step, which, stacks)


def _slice_from_torch(
    header: Mapping[str, TensorInfo], step: int, which: int, stacks: int
) -> Iterator[tuple[str, Source]]:
    """One step of the depformer, whose shared weights are number ``which`` of ``stacks``."""
    base = f"{SLICES}.{step}"
    inputs = min(which, count_modules(header, "depformer_in") - 1)
    embedding = "depformer_text_emb" if step == 0 else f"depformer_emb.{step - 1}"
    for prefix, new in (
        (f"depformer_in.{inputs}.", "linear_in."),
        (f"linears.{step}.", "linear_out."),
        (f"depformer_norms.{step}.", "norm."),
        (f"{embedding}.", "emb."),
    ):
        for name in header:
            if name.startswith(prefix):
                rest = name.removeprefix(prefix).replace("alpha", "weight")
                yield f"{base}.{new}{rest}", Source(name, is_flat=name.endswith(".alpha"))
    for name in header:
        found = re.match(r"^depformer\.(layers\.\d+\.)(.*)$", name)
        if found is not None:
            yield from _layer_from_torch(name, f"{base}.transformer.{found[1]}", found[2], which, stacks)


def _layer_from_torch(
    name: str, base: str, rest: str, which: int, stacks: int
) -> Iterator[tuple[str, Source]]:
    if (projection := re.match(r"^self_attn\.(in|out)_proj(?:_weight|\.weight)$", rest)) is not None:
        yield f"{base}self_attn.{projection[1]}_proj.weight", Source(name, which, stacks)
    elif (numbered := re.match(r"^(self_attn\.(?:in|out)_proj|gating)s?\.(\d+)\.(.*)$", rest)) is not None:
        if int(numbered[2]) == which:
            yield f"{base}{numbered[1]}.{numbered[3]}", Source(name)
    else:
        yield f"{base}{rest.replace('alpha', 'weight')}", Source(name, is_flat=name.endswith(".alpha"))
