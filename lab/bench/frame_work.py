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
from lab.bench.cpu_rates import FLOAT32, INT8, Rates

CODEC_BYTES: Final = 124e6
"""Of Mimi's graphs in INT8 (docs/benchmarks/cpu-models.md)."""
CODEC_ROW_BYTES: Final = 16.4e6
"""Of a row's rings in Mimi, both directions."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a backend keeps a model, and by which numbers it multiplies layers.

    Bits of a layer's weight, its share of a scale included, and of any other weight. ``int8_ring_bytes``:
    rings of a layer that take so many or more in float32 are INT8; None for float32 in any case.
    """

    layer_bits: float
    other_bits: int
    int8_ring_bytes: int | None
    layer_kind: str


KEEPINGS: Final[Mapping[str, Keeping]] = {
    "onnx int4": Keeping(4 + 32 / 32, 32, 1_000_000, INT8),
    "onnx int8": Keeping(8 + 32 / 128, 32, 1_000_000, INT8),
    "torch int4": Keeping(4 + 2 * 16 / 32, 16, None, FLOAT32),
    "torch int8": Keeping(8, 16, None, INT8),
}
"""By backend and form. ONNX keeps heads in float32 and large rings in INT8, torch heads in bfloat16."""


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
    shape, least_bytes = model.transformer.config, keeping.int8_ring_bytes
    round_rings(model.transformer, least_bytes)
    rings = list(model.specs())
    is_rounded = any(spec.dtype == torch.int8 for spec in rings)
    products = 2 * shape.context * shape.dim * shape.layers
    ring = Work(0, row_bytes(rings), products, INT8 if is_rounded else FLOAT32)
    stages = {"lm": (*_linears(model, "lm", keeping), ring)}
    if model.depformer is not None:
        stages["depformer"] = tuple(_linears(model, "depformer", keeping))
    return FrameWork(stages)


def codec_work() -> Work:
    """Of full-size Mimi, both directions."""
    return Work(CODEC_BYTES, CODEC_ROW_BYTES, CODEC_FLOP, FLOAT32)


def _linears(model: LanguageModel, stage: str, keeping: Keeping) -> Iterator[Work]:
    """Its layers, then its other products."""
    sizes = {True: 0, False: 0}
    for name, child in model.named_modules():
        if isinstance(child, Linear) and name.startswith("depformer.") == (stage == "depformer"):
            sizes[follows_recipe(name)] += child.in_features * child.out_features
    yield Work(sizes[True] * keeping.layer_bits / 8, 0, sizes[True], keeping.layer_kind)
    yield Work(sizes[False] * keeping.other_bits / 8, 0, sizes[False], FLOAT32)
