"""The names under which language models are published for mlx, and where each tensor is in PyTorch's files.

The layout is that of kyutai-labs/moshi's ``moshi_mlx`` (``models/lm.py``, ``scripts/import_mlx.py``,
``scripts/quantize_mlx.py``): audio embeddings are ``audio_embs.N``, a norm's ``alpha`` is ``weight``, and
each depformer step is a slice with all its weights, those it shares with other steps included. A rounded
matrix ``X.weight`` is uint32 with ``X.scales`` and ``X.biases`` beside it: mlx's affine groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from antiphon.models.architecture import stored_sets, weight_sets
from antiphon.models.weights import TensorInfo, count_modules

AUDIO_EMBEDDINGS: Final = "audio_embs"
MLX_NAMES: Final = ("model.q8.safetensors", "model.q4.safetensors")
"""What a rounded language model is called where no configuration names it: groups of 64, and of 32."""
SLICES: Final = "depformer.slices"
_WORD_BITS: Final = 32
_SLICE: Final = re.compile(r"^depformer\.slices\.(\d+)\.(.*)$")
_PER_SLICE_ALWAYS: Final = ("emb.", "linear_out.", "norm.")
"""What a step of the depformer never shares with another."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a tensor lies in a file: rows ``part`` of ``parts`` of the one called ``name``.

    ``is_flat``: only its numbers count, its shape being ``[1, 1, dim]`` for ``[dim]``.
    """

    name: str
    part: int = 0
    parts: int = 1
    is_flat: bool = False

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The tensor's own shape, given that of the one it lies in."""
        if self.is_flat:
            return (whole[-1],)
        return (whole[0] // self.parts, *whole[1:])


def is_mlx_layout(header: Mapping[str, TensorInfo]) -> bool:
    """Whether a language model's file has mlx's names."""
    return f"{AUDIO_EMBEDDINGS}.0.weight" in header


def unrounded_parameters(header: Mapping[str, TensorInfo], dim: object) -> int:
    """How many numbers a rounded language model stands for; 0 for a file that is not rounded.

    The bits are those of its first layer, whose rows have ``dim`` numbers, as in the published files, where
    all matrices have the same. Files with exceptions have a manifest, which knows the count.
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
    """Where each tensor of mlx's layout lies in a file of either layout, for the first ``steps`` slices.

    Slices that share their weights (``depformer_weights_per_step_schedule``) point to the same source.
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
