"""What a frame of a language model has to read and to multiply on a CPU, from shapes alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.modules.linear import Linear
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.quantised.int8 import follows_recipe
from antiphon.backends.torch.state import row_bytes
from antiphon.models.costs import CODEC_FLOP
from antiphon_quantize.onnx_rings import round_rings
from antiphon_quantize.recipe import Recipe, load_recipe
from lab.bench.cpu_rates import FLOAT32, INT8, Rates

FLOAT_BITS: Final = 32
MOST_ROUNDED_BITS: Final = 8
CODEC_BYTES: Final = 124e6
"""Of Mimi's graphs in INT8 (docs/benchmarks/cpu-models.md)."""
CODEC_ROW_BYTES: Final = 16.4e6
"""Of a row's rings in Mimi, both directions."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a backend keeps a model, and by which numbers it multiplies what is rounded.

    ``recipe`` is that of ONNX graphs, which has the bits of each weight and says which rings are INT8.
    Without one ``layer_bits`` are those of a layer's weight, its share of a scale included, ``other_bits``
    those of any other, and rings are float32.
    """

    kind: str
    recipe: str = ""
    layer_bits: float = FLOAT_BITS
    other_bits: float = FLOAT_BITS

    def rounding(self) -> Recipe | None:
        """The recipe itself."""
        return load_recipe("onnx", self.recipe) if self.recipe else None


KEEPINGS: Final[Mapping[str, Keeping]] = {
    "onnx int4": Keeping(INT8, recipe="int4"),
    "onnx int8": Keeping(INT8, recipe="int8"),
    "torch int4": Keeping(FLOAT32, layer_bits=4 + 2 * 16 / 32, other_bits=16),
    "torch int8": Keeping(INT8, layer_bits=8, other_bits=16),
}
"""By backend and form. Torch keeps heads in bfloat16."""


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes that are read once for all rows and once for each row, and products of a row, of one kind."""

    shared_bytes: float
    row_bytes: float
    products: float
    kind: str

    def least_s(self, rows: int, rates: Rates) -> float:
        """Seconds that no machine of these rates can do without."""
        return rates.least_s(self.shared_bytes + rows * self.row_bytes, rows * self.products, self.kind)


@dataclass(frozen=True, slots=True)
class FrameWork:
    """A frame's work by stage: ``lm`` and, where the model speaks, ``depformer``."""

    stages: Mapping[str, tuple[Work, ...]]

    def least_ms(self, rows: int, rates: Rates) -> float:
        """Of all stages together."""
        return sum(self.stage_ms(stage, rows, rates) for stage in self.stages)

    def stage_ms(self, stage: str, rows: int, rates: Rates) -> float:
        """Of one stage."""
        return 1000 * sum(work.least_s(rows, rates) for work in self.stages[stage])

    @property
    def bytes(self) -> float:
        """What a frame of one row reads."""
        works = [work for stage in self.stages.values() for work in stage]
        return sum(work.shared_bytes + work.row_bytes for work in works)


def frame_work(config: Mapping[str, Any], keeping: Keeping) -> FrameWork:
    """The work of a published configuration whose rings are full."""
    with torch.device("meta"):
        compute = Compute(torch.bfloat16, torch.float32)
        model = LanguageModel(config, steps=config["dep_q"], compute=compute)
    shape, recipe = model.transformer.config, keeping.rounding()
    round_rings(model.transformer, None if recipe is None else recipe.int8_ring_bytes)
    rings = list(model.specs())
    is_rounded = any(spec.dtype == torch.int8 for spec in rings)
    products = 2 * shape.context * shape.dim * shape.layers
    ring = Work(0, row_bytes(rings), products, INT8 if is_rounded else FLOAT32)
    stages = {"lm": (*_linears(model, "lm", keeping, recipe), ring)}
    if model.depformer is not None:
        stages["depformer"] = tuple(_linears(model, "depformer", keeping, recipe))
    return FrameWork(stages)


def codec_work() -> Work:
    """Of full-size Mimi, both directions."""
    return Work(CODEC_BYTES, CODEC_ROW_BYTES, CODEC_FLOP, FLOAT32)


def _linears(model: LanguageModel, stage: str, keeping: Keeping, recipe: Recipe | None) -> Iterator[Work]:
    """Its rounded products, then the others."""
    numbers, size_bytes = {True: 0, False: 0}, {True: 0.0, False: 0.0}
    for name, child in model.named_modules():
        if isinstance(child, Linear) and name.startswith("depformer.") == (stage == "depformer"):
            if recipe is None:
                is_rounded = follows_recipe(name)
                bits = keeping.layer_bits if is_rounded else keeping.other_bits
            else:
                is_rounded, bits = _bits_of(recipe, f"model.{name}.weight")
            count = child.in_features * child.out_features
            numbers[is_rounded] += count
            size_bytes[is_rounded] += count * bits / 8
    for is_rounded, kind in ((True, keeping.kind), (False, FLOAT32)):
        yield Work(size_bytes[is_rounded], 0, numbers[is_rounded], kind)


def _bits_of(recipe: Recipe, name: str) -> tuple[bool, float]:
    """Whether a weight is multiplied in few bits, and its bits with the share of a float32 scale."""
    bits = recipe.bits_of(name) or FLOAT_BITS
    return (False, bits) if bits > MOST_ROUNDED_BITS else (True, bits + FLOAT_BITS / recipe.block)
