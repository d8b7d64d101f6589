"""A recipe: which tensors are made smaller and by which method, and the reasons why the others are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any, Final

from antiphon import __version__
from antiphon.errors import CheckpointFormatError, ConfigError, UnsupportedError, hint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import QuantizationRecipe, sha256
from antiphon.models.spec import LMSpec
from antiphon.models.strict import read_record
from antiphon_quantize.gate_limits import Limit, check_limits, read_toml

POSITIONS: Final = "int8_convolution_positions"
CODEC_PARTS: Final = ("encoder", "decoder")

COPIED: Final[Mapping[str, str]] = {
    "mimi": "mimi.safetensors",
    "tokenizer": "tokenizer.model",
    "mimi_config": "mimi_config.json",
}
"""The source's files that a new checkpoint copies, by role: all except the language model's weights."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for the tensors whose names match a glob pattern, and its reason.

    ``bits`` replaces the recipe's number of bits; it has no effect in ``keep``.
    """

    tensors: str
    why: str
    bits: int | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """The content of a recipe file.

    ``scheme`` and ``bits`` are copied to the checkpoint's manifest, ``options`` to the options of its
    backend. ``keep`` has priority over ``quantize``, and an earlier rule over a later one. ``block`` is the
    number of weights that share a scale, for formats with blocks (mlx, and 4 bits of onnx and torch), and
    ``search`` whether the scale is searched or is just large enough for the largest weight (onnx, torch's
    int4). ``format`` and ``method``, for torch, are the format of a weight (int8, int4, fp8) and the method
    (nearest, awq, gptq, smoothquant, smoothquant-static). ``int8_ring_bytes``, for onnx: keys and values of a
    language model are INT8 in layers where a row's keys and values would take this number of bytes or more in
    float32; None selects no layer.
    ``int8_convolution_positions``, for onnx, is a number for the codec's "encoder" and "decoder":
    convolutions after an ELU with at most that number of positions a frame multiply in INT8. A part without a
    number has no INT8 convolutions. ``gate`` has the limits for the result, in addition to the limits that
    are common to all recipes.
    """

    description: str
    scheme: str
    bits: int
    quantize: tuple[Rule, ...]
    keep: tuple[Rule, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    block: int = 128
    search: bool = False
    format: str = "int8"
    method: str = "nearest"
    int8_ring_bytes: int | None = None
    int8_convolution_positions: Mapping[str, int] = field(default_factory=dict)
    gate: tuple[Limit, ...] = ()

    def bits_of(self, name: str) -> int | None:
        """The bits to which the recipe rounds the tensor ``name``; None if the tensor is unchanged."""
        if any(fnmatchcase(name, rule.tensors) for rule in self.keep):
            return None
        rules = (rule for rule in self.quantize if fnmatchcase(name, rule.tensors))
        return next((rule.bits or self.bits for rule in rules), None)

    @property
    def group_size(self) -> int | None:
        """The number of weights that share a scale, in graphs; None if no rule has 4 bits."""
        return self.block if 4 in {self.bits, *(rule.bits for rule in self.quantize)} else None

    def chooses(self, name: str) -> bool:
        """Whether the recipe makes the tensor of this name smaller."""
        return self.bits_of(name) is not None


def quantization_of(
    recipe: Recipe,
    recipe_name: str,
    checkpoint: Checkpoint,
    source_sha256: str,
    *,
    group_size: int | None,
    heard: str = "",
) -> QuantizationRecipe:
    """A manifest's description of how a checkpoint was rounded; ``heard`` names the calibration
    recordings."""
    options = source_options(recipe, recipe_name, checkpoint)
    return QuantizationRecipe(
        scheme=recipe.scheme,
        bits=recipe.bits,
        group_size=group_size,
        keep=tuple(rule.tensors for rule in recipe.keep),
        source_sha256=source_sha256,
        tool=f"antiphon quantize {__version__}",
        options=options | ({"calibration": heard} if heard else {}),
    )


def source_options(recipe: Recipe, recipe_name: str, checkpoint: Checkpoint) -> dict[str, object]:
    """A manifest's additional options on how a checkpoint was rounded.

    If the language model came from a GGUF file, they are the file's name and SHA-256.
    """
    rounded = [rule.tensors for rule in recipe.quantize]
    options: dict[str, object] = {"recipe": recipe_name, "quantize": rounded}
    if recipe.int8_ring_bytes is not None:
        options["int8_ring_bytes"] = recipe.int8_ring_bytes
    if recipe.int8_convolution_positions:
        options[POSITIONS] = dict(recipe.int8_convolution_positions)
    if "gguf" in checkpoint.files:
        path = checkpoint.file("gguf")
        options["gguf"] = {"name": path.name, "sha256": sha256(path)}
    return options


def check_source(checkpoint: Checkpoint) -> LMSpec:
    """The language model to round. Raises UnsupportedError: there is no language model, or it has a LoRA."""
    if checkpoint.spec.lm is None:
        raise UnsupportedError(f"{checkpoint.spec.name} has no language model; there is nothing to quantize")
    if "lora" in checkpoint.files:
        raise UnsupportedError(f"{checkpoint.spec.name} has a LoRA; merge it into the weights first")
    return checkpoint.spec.lm


def load_recipe(target: str, ref: str) -> Recipe:
    """A recipe of this project by its name, or a TOML file by its path.

    Raises:
        ConfigError: the recipe does not exist, or cannot be read. CheckpointFormatError: an unknown or
        missing key, with the nearest one.
    """
    if ref.endswith(".toml"):
        return read_recipe(Path(ref))
    known = recipe_names(target)
    if ref not in known:
        raise ConfigError(
            f"no recipe '{ref}' for {target}{hint(ref, known)}; there are: {', '.join(known)}, "
            "and files ending with .toml"
        )
    return read_recipe(_folder() / f"{target}-{ref}.toml")


def recipe_names(target: str) -> list[str]:
    """The names of this project's recipes for a target."""
    return sorted(path.stem.partition("-")[2] for path in _folder().glob(f"{target}-*.toml"))


def _folder() -> Path:
    return Path(str(resources.files("antiphon_quantize"))) / "recipes"


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe file. Raises as :func:`load_recipe`."""
    table = read_toml(path, "recipe")
    recipe = read_record(Recipe, table, str(path), ": ")
    check_limits(recipe.gate, f"{path}: gate")
    for part, positions in recipe.int8_convolution_positions.items():
        where = f"{path}: {POSITIONS}"
        if part not in CODEC_PARTS:
            raise CheckpointFormatError(
                f"{where} has an unknown key '{part}'{hint(part, CODEC_PARTS)}; it may have "
                f"{', '.join(CODEC_PARTS)}"
            )
        if positions < 0:
            raise CheckpointFormatError(f"{where}.{part} is {positions}; it can be 0 or more")
    return recipe
