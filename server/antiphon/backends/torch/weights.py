"""Loads published safetensors under this package's parameter names, and the conditions of a tts model.

**Conditions** are the inputs of a tts model apart from text: a voice, and the strength of its effect. The
rule is that of ``ConditionFuser`` and the conditioners of ``moshi/conditioners`` in kyutai-labs/moshi: a
voice is the source of cross-attention, with the same number of positions for every row; a choice from a table
is added to every input. They are computed once, in float32: a voice becomes keys and values of a row, and a
choice becomes a constant of the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from antiphon.backends.torch.modules.attention import PLAIN, Compute
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.quantised import BESIDE, LAYERS, NAMES, VALUES, Parts, expect_stored
from antiphon.errors import CheckpointFormatError
from antiphon.models.architecture import stored_sets
from antiphon.models.conditioning import (
    CONDITION,
    PROVIDER,
    SpeakerShape,
    check_conditions,
    chosen_entry,
    description_entry,
    source_positions,
)
from antiphon.models.spec import ModelSpec
from antiphon.models.weights import USAGE_FLOOR, find_codebooks, is_projection, own_names


def load_mimi(
    path: Path,
    config: Mapping[str, Any],
    codebooks: int,
    device: torch.device | str = "cpu",
    *,
    attention: str = "torch",
) -> Mimi:
    """Load a published Mimi file for its first ``codebooks`` levels; the caller then calls Mimi.prepare.

    Mimi computes in float32, whatever the dtype of the file.

    Raises:
        CheckpointFormatError: tensors are missing or unknown, or differ in shape from the configuration.
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
    """Give a module on the meta device its tensors; ``tensors`` must have exactly the module's names and
    shapes.

    Raises:
        CheckpointFormatError: names or shapes differ; the message counts and lists them.
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


_RENAMES = (
    (re.compile(r"^depformer_(emb|text_emb|norms)\."), r"depformer.\1."),
    (re.compile(r"^depformer_in\."), "depformer.inputs."),
    (re.compile(r"^linears\."), "depformer.linears."),
    (re.compile(r"^(depformer\.layers\.\d+)\.self_attn\."), r"\1."),
    (re.compile(r"^(depformer\.layers\.\d+\.gating)\.linear_"), r"\1.0.linear_"),
    (re.compile(r"^(transformer\.layers\.\d+)\.gating\."), r"\1.feed_forward."),
    (re.compile(r"^(transformer\.layers\.\d+)\.(linear[12])\."), r"\1.feed_forward.\2."),
    (re.compile(r"\.in_proj_weight$"), ".in_proj.weight"),
    (re.compile(r"^(transformer\..*)\.(in|out)_projs\.0\."), r"\1.\2_proj."),
)
_STACKED = re.compile(r"^(depformer\.layers\.\d+\.)(in|out)_proj\.(.*)$")
_PER_STEP = re.compile(
    r"^depformer\.(?:inputs|emb|norms|linears|layers\.\d+\.(?:in_projs|out_projs|gating))\.(\d+)\."
)
_BESIDE_WEIGHT = re.compile(rf"\.({'|'.join(BESIDE)})$")
_BESIDE = tuple(f"weight_{part}" for part in (*BESIDE, "scb"))
_INT8_MAX = 127.0


def load_lm(
    path: Path,
    config: Mapping[str, Any],
    *,
    steps: int,
    family: str = "moshi",
    lora: Path | None = None,
    cross_positions: int = 0,
    compute: Compute = PLAIN,
) -> LanguageModel:
    """Load a published language model, its LoRA merged in, with upstream's corrections.

    Linears that are quantised in the file remain so, bit by bit, with their scales in float32; with a LoRA,
    which cannot be added to integers, they become ordinary weights.

    Raises:
        CheckpointFormatError: tensors are missing or unknown, or differ in shape from the configuration.
        UnsupportedError: an option no published model uses.
    """
    with torch.device("meta"):
        model = LanguageModel(config, steps=steps, cross_positions=cross_positions, compute=compute)
    published = load_file(path)
    tensors = lm_tensors(published, model, keep_rounded=lora is None)
    for name in [name for name, tensor in tensors.items() if tensor.dtype in LAYERS]:
        base = name.removesuffix(".weight")
        beside = {part: tensors[f"{base}.{part}"] for part in BESIDE if f"{base}.{part}" in tensors}
        expect_stored(model, base, {"weight": tensors[name], **beside})
    if lora is not None:
        sets = stored_sets(config)
        adapters = dict(pair for item in load_file(lora).items() for pair in renamed(*item, sets))
        merge_lora(tensors, adapters, float(config.get("lora_scaling", 2.0)))
    if family == "hibiki":
        # As upstream: padding replaces an end of text that is sampled too early.
        tensors["text_emb.weight"][2] = tensors["text_emb.weight"][3]
    assign(model, tensors, path)
    entry = description_entry(config, family)
    if entry is not None:
        model.condition = embed_choice(published, "description", entry).to(compute.dtype)
    return model


def lm_tensors(
    published: Mapping[str, Tensor], model: LanguageModel, *, keep_rounded: bool = True
) -> dict[str, Tensor]:
    """Rename, split and stack a published model's tensors into the tensors of ``model``, in its dtype.

    With ``keep_rounded``, a quantised weight remains so, with its parts: ``X.scale``, and ``X.prescale`` and
    ``X.step`` if they exist.
    """
    wanted, sets = model.state_dict().keys(), stored_sets(model.config)
    tensors: dict[str, Tensor] = {}
    for name, tensor in published.items():
        if name.startswith(("condition_provider.", "fuser.", "emb.")) or name.endswith(_BESIDE):
            continue
        beside = parts_of(published, name) if keep_rounded else {}
        whole = tensor if beside else dequantized(published, name).to(model.dtype)
        parts = dict(renamed(name, whole, sets))
        for kind, values in beside.items():
            for new_name, part in renamed(name, values, sets):
                has_blocks = kind == "scale" and whole.dtype == torch.uint8
                own_name = f"{new_name.removesuffix('.weight')}.{kind}"
                parts[own_name] = part if has_blocks else part.reshape(-1)
        for new_name, part in parts.items():
            step = _PER_STEP.match(new_name)
            is_heard = _BESIDE_WEIGHT.sub(".weight", new_name) in wanted
            if step is None or is_heard or int(step[1]) < model.steps - 1:
                tensors[new_name] = part
    tables = [published[f"emb.{index}.weight"] for index in range(model.config["n_q"])]
    tensors["audio_emb.weight"] = torch.cat(tables).to(model.dtype)
    return tensors


def renamed(name: str, tensor: Tensor, sets: int) -> Iterator[tuple[str, Tensor]]:
    """Rename one tensor to this package's name; yield several if a depformer projection stacks its steps'
    weights.
    """
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    stacked = _STACKED.match(name)
    if stacked is None:
        yield name, tensor
        return
    parts = tensor.view(sets, -1, tensor.shape[-1])
    for index, part in enumerate(parts):
        yield f"{stacked[1]}{stacked[2]}_projs.{index}.{stacked[3]}", part.clone()


def parts_of(published: Mapping[str, Tensor], name: str) -> Parts:
    """The scales and other parts of a quantised tensor, ``scale`` in float32; empty for other tensors.

    ``NAME_scb [out]`` are the rows' largest values (bitsandbytes' ``int8_vectorwise_quant``, in upstream's
    files): value = int8 * scb / 127.

    Raises:
        CheckpointFormatError: a quantised weight without scales.
    """
    if published[name].dtype not in LAYERS:
        return {}
    parts = {part: published[f"{name}_{part}"].float() for part in BESIDE if f"{name}_{part}" in published}
    if (largest := published.get(f"{name}_scb")) is not None:
        parts["scale"] = largest.float().reshape(-1, 1) / _INT8_MAX
    if "scale" not in parts:
        raise CheckpointFormatError(
            f"'{name}' is {NAMES[published[name].dtype]}, but neither '{name}_scale' nor '{name}_scb' is "
            "there"
        )
    return parts


def dequantized(published: Mapping[str, Tensor], name: str) -> Tensor:
    """A tensor unchanged, or the float32 values of a quantised one, for unscaled inputs.

    Raises:
        CheckpointFormatError: a quantised weight without scales, or with scales that do not fit.
    """
    weight, parts = published[name], parts_of(published, name)
    if not parts:
        return weight
    values = VALUES[weight.dtype](weight, parts["scale"])
    if (prescale := parts.get("prescale")) is not None:
        values *= prescale.repeat_interleave(weight.shape[0] // prescale.shape[0], dim=0)
    return values


def merge_lora(tensors: dict[str, Tensor], adapters: Mapping[str, Tensor], scaling: float) -> None:
    """Add ``scaling * B A`` of every adapter to its weight (Hu et al. 2021), in float32.

    Raises:
        CheckpointFormatError: an adapter for a missing weight, or of another shape.
    """
    for name, down in adapters.items():
        base, is_down, _ = name.partition(".lora_A.weight")
        if not is_down:
            continue
        up, weight = adapters[f"{base}.lora_B.weight"], tensors.get(f"{base}.weight")
        if weight is None:
            raise CheckpointFormatError(f"the LoRA file adapts {base}, which the model does not have")
        if weight.shape != (up.shape[0], down.shape[1]) or up.shape[1] != down.shape[0]:
            shapes = f"{tuple(up.shape)} x {tuple(down.shape)}"
            raise CheckpointFormatError(
                f"a LoRA of {shapes} does not fit {base}, which is {tuple(weight.shape)}"
            )
        change = scaling * (up.float() @ down.float())
        tensors[f"{base}.weight"] = (weight.float() + change).to(weight.dtype)


def embed_choice(published: Mapping[str, Tensor], name: str, index: int) -> Tensor:
    """One entry of a lookup conditioner's table as a vector ``[1, dim]`` float32."""
    prefix = f"{PROVIDER}.{name}"
    entry = published[f"{prefix}.embed.weight"][index].float()
    projection = f"{prefix}.output_proj.weight"
    return (dequantized(published, projection).float() @ entry if projection in published else entry)[None]


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditioners of one model: a constant, and the tensors that make the cross-attention source of
    voices.

    ``constant`` float32 ``[1, dim]`` is added to every input, ``unconditioned [1, dim]`` to the inputs of the
    unconditioned sequence (see :mod:`antiphon.backends.torch.generation`). ``projection`` is ``[dim,
    width]``, ``empty [dim]`` stands for no voice, ``positions`` ``[5 * T, dim]`` is added to every source.
    """

    constant: Tensor | None
    unconditioned: Tensor | None = None
    shape: SpeakerShape | None = None
    projection: Tensor | None = None
    empty: Tensor | None = None
    positions: Tensor | None = None

    @property
    def pair(self) -> Tensor | None:
        """The addend of a guided row's inputs, ``[2, dim]``: conditioned and unconditioned."""
        if self.constant is None or self.unconditioned is None:
            return None
        return torch.cat([self.constant, self.unconditioned])

    def source(self, speakers: np.ndarray[Any, np.dtype[np.float32]] | None) -> Tensor:
        """The cross-attention source ``[5 * T, dim]`` of up to five voices, float32 ``[V, T, width]``; None
        for no voice.
        """
        assert self.shape is not None
        assert self.empty is not None
        assert self.positions is not None
        assert self.projection is not None
        source = self.empty.expand(self.shape.positions, -1).clone()
        if speakers is not None:
            voices = torch.from_numpy(np.ascontiguousarray(speakers)).to(source.device)
            said = voices.flatten(0, 1) @ self.projection.T
            source[: len(said)] = said
        return source + self.positions


def load_conditions(path: Path, spec: ModelSpec, device: torch.device) -> Conditions:
    """Read a model's conditioners from its file.

    Raises:
        UnsupportedError: the conditions, or their combination, occur in no published model.
    """
    config = {} if spec.lm is None else spec.lm.config
    if not config.get("conditioners"):
        return Conditions(None)
    check_conditions(config)
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(PROVIDER)]  # noqa: SIM118 (no mapping)
        published = {name: file.get_tensor(name) for name in names}
    tables = config["fuser"].get("sum") or []
    constant = unconditioned = None
    if tables:
        constant = torch.stack([_choice(published, config, name) for name in tables]).sum(0).to(device)
        unconditioned = (
            torch.stack([_no_choice(published, config, name) for name in tables]).sum(0).to(device)
        )
    shape = SpeakerShape.of(spec)
    if shape is None:
        return Conditions(constant, unconditioned)
    name = f"{PROVIDER}.{CONDITION}"
    projection = dequantized(published, f"{name}.output_proj.weight").float()
    empty = published.get(f"{name}.learnt_padding", torch.zeros(projection.shape[0])).float().reshape(-1)
    positions = torch.from_numpy(source_positions(config, shape.positions, projection.shape[0]))
    return Conditions(
        constant, unconditioned, shape, projection.to(device), empty.to(device), positions.to(device)
    )


def _choice(published: Mapping[str, Tensor], config: Mapping[str, Any], name: str) -> Tensor:
    """The vector ``[1, dim]`` of the chosen entry of a table; without that entry, the vector of no choice."""
    index = chosen_entry(config, name)
    return _no_choice(published, config, name) if index is None else embed_choice(published, name, index)


def _no_choice(published: Mapping[str, Tensor], config: Mapping[str, Any], name: str) -> Tensor:
    """The vector ``[1, dim]`` of no choice from a table: the learnt one, or zeros."""
    padding = published.get(f"{PROVIDER}.{name}.learnt_padding", torch.zeros(config["dim"]))
    return padding.float().reshape(1, -1)
