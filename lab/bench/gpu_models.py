"""Models of published sizes with seeded random weights, and the bytes that one of their ticks reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.modules.layers import Linear
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.pages import page_bytes, row_pages
from antiphon.backends.torch.pipeline import codec_specs
from antiphon.backends.torch.quantised import Int4Linear, follows_recipe
from antiphon.backends.torch.state import row_bytes
from antiphon.models.costs import TICK_ROW_BYTES
from antiphon.models.published import MIMI_CONFIG, MOSHI_CONFIG
from antiphon.models.spec import LMSpec, MimiSpec, ModelSpec, PipelineKind
from lab.bench.published import STT_1B, TTS_1_6B, VOICES_POSITIONS
from tests.support.int4 import BLOCK, nearest_int4

SHRUNK: Mapping[str, Any] = {
    "dim": 64, "num_layers": 2, "num_heads": 2, "context": 80, "text_card": 300, "card": 64,
    "depformer_dim": 32, "depformer_num_heads": 2, "depformer_num_layers": 1,
    "depformer_dim_feedforward": 96,
}  # fmt: skip
_STEP = re.compile(r"^depformer\.(?:layers\.\d+\.(?:in_projs|out_projs|gating)|(inputs))\.(\d+)")


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a model: the published arguments of its language model and of its Mimi, and its kind."""

    name: str
    kind: PipelineKind
    lm: Mapping[str, Any]
    mimi: Mapping[str, Any]
    cross_positions: int = 0

    @property
    def heard(self) -> int:
        """The number of streams that Mimi's encoder gives to the language model."""
        return int(self.lm["n_q"] - self.lm["dep_q"])

    @property
    def codebooks(self) -> int:
        """The number of Mimi's levels in use."""
        return max(self.heard, int(self.lm["dep_q"]))


@dataclass(frozen=True, slots=True)
class Form:
    """The number formats of a model. ``bits`` of the layers' weights: 16 for ``dtype``, 8 or 4; ``kv`` is the
    form of keys and values."""

    bits: int
    kv: KVForm
    dtype: torch.dtype = torch.bfloat16

    @classmethod
    def of(cls, *, is_int8: bool, dtype: torch.dtype = torch.bfloat16) -> Form:
        """Return the form with weights, keys and values in INT8, or with no rounding."""
        return cls(8 if is_int8 else 16, KVForm.INT8 if is_int8 else KVForm.COMPUTE, dtype)


@dataclass(frozen=True, slots=True)
class Reads:
    """The minimum bytes that a tick reads: ``weights_bytes`` once, and for each row ``other_row_bytes`` and
    ``kv_bytes_per_frame`` for each frame of its context.

    ``state_bytes`` is the memory of a row, ``resident_bytes`` that of all weights.
    """

    weights_bytes: int
    kv_bytes_per_frame: int
    other_row_bytes: int
    context: int
    state_bytes: int
    resident_bytes: int

    @property
    def row_bytes(self) -> int:
        """The bytes of memory that sizing counts for a row: its state, and its part of a tick."""
        return self.state_bytes + TICK_ROW_BYTES

    def tick_bytes(self, rows: int, frames: int) -> int:
        """Return the bytes of a tick over ``rows`` rows that have received ``frames`` frames each."""
        row = self.kv_bytes_per_frame * min(frames, self.context) + self.other_row_bytes
        return self.weights_bytes + rows * row


def published_sizes() -> dict[str, Size]:
    """Return the published model sizes, by name."""
    mimi = MIMI_CONFIG
    sizes = (
        Size("moshi-7b", PipelineKind.DUPLEX, MOSHI_CONFIG, mimi),
        Size("stt-1b", PipelineKind.STT, STT_1B, mimi),
        # Spoken text is not an input here: the step is that of a model without audio input.
        Size("tts-1.6b", PipelineKind.DUPLEX, TTS_1_6B, mimi, VOICES_POSITIONS),
    )
    return {size.name: size for size in sizes}


def small_size(size: Size) -> Size:
    """Return the same kind of model in a size for a test on a CPU."""
    mimi = {**size.mimi}
    mimi["seanet"] = {**mimi["seanet"], "dimension": 32, "n_filters": 4}
    mimi["quantizer"] = {
        **mimi["quantizer"], "dimension": 16, "bins": 64, "input_dimension": 32, "output_dimension": 32
    }  # fmt: skip
    mimi["transformer"] = {
        **mimi["transformer"], "d_model": 32, "num_heads": 2, "num_layers": 2, "context": 30,
        "dim_feedforward": 64, "input_dimension": 32, "output_dimensions": [32],
    }  # fmt: skip
    cross = 10 if size.cross_positions else 0
    return Size(f"{size.name}, shrunk", size.kind, {**size.lm, **SHRUNK}, mimi, cross)


def model_spec(size: Size) -> ModelSpec:
    """Return the specification of the model for a backend."""
    lm, mimi = size.lm, size.mimi
    bins = mimi["quantizer"]["bins"]
    return ModelSpec(
        name=size.name,
        kind=size.kind,
        family="bench",
        mimi=MimiSpec(mimi["sample_rate"], mimi["frame_rate"], size.codebooks, bins, mimi),
        lm=LMSpec(
            lm["dim"],
            lm["num_layers"],
            lm["num_heads"],
            lm["context"],
            lm["n_q"],
            lm["dep_q"],
            lm["card"],
            lm["text_card"],
            tuple(lm["delays"]),
            extra_heads=lm.get("extra_heads_num_heads", 0),
            config=lm,
        ),
    )


def empty_modules(
    size: Size, form: Form, attention: str = "torch", device: str = "meta"
) -> tuple[Mimi, LanguageModel]:
    """Return Mimi and the language model on ``device``; "meta" gives them shapes without memory."""
    with torch.device(device):
        mimi = Mimi(size.mimi, size.codebooks, attention="torch" if attention == "torch" else "auto")
        model = LanguageModel(
            size.lm,
            steps=size.lm["dep_q"],
            cross_positions=size.cross_positions,
            compute=Compute(form.dtype, kv=form.kv, attention=attention),
        )
    return mimi, model


def make_modules(
    size: Size, form: Form, device: torch.device, attention: str = "auto"
) -> tuple[Mimi, Generator]:
    """Return Mimi and the generator with seeded random weights, in the state after loading."""
    mimi, model = empty_modules(size, form, attention)
    for module in (mimi, model):
        fill_randomly(module.to_empty(device=device))
    generator = Generator(prepared(model, form, pack=True), lm_spec(size))
    return mimi.prepare(pack=True), generator


def prepared(model: LanguageModel, form: Form, *, pack: bool = False) -> LanguageModel:
    """Return a model whose linears have a form's bits, ready to run; with 4 bits its inputs are rounded
    too."""
    if form.bits == 4:
        for name, linear in list(model.named_modules()):
            if isinstance(linear, Linear) and follows_recipe(name):
                parent, _, own = name.rpartition(".")
                setattr(model.get_submodule(parent), own, in_int4(linear))
    return model.prepare(pack=pack, int8=form.bits == 8, rounds_input=form.bits == 4 or None)


def in_int4(linear: Linear) -> Int4Linear:
    """Return a linear whose weights are rounded to the nearest of 16 values."""
    return Int4Linear(*nearest_int4(linear.weight.data), linear.bias)


def lm_spec(size: Size) -> LMSpec:
    """Return the specification of the language model for its delay cache and its sampler."""
    spec = model_spec(size).lm
    assert spec is not None
    return spec


def fill_randomly(module: nn.Module) -> None:
    """Give a module weights that keep its activations in range: ones for vectors, noise for matrices.

    A norm's weight ``[1, 1, dim]`` is a vector too.
    """
    torch.manual_seed(0)
    for tensor in module.state_dict().values():
        if tensor.dim() < 2 or tensor.numel() == tensor.shape[-1]:
            tensor.fill_(1)
        else:
            tensor.normal_(0, tensor[0].numel() ** -0.5)


def paged_bytes(spec: TensorSpec) -> int:
    """Return the bytes of a row's tensor on a GPU, where rings consist of whole pages."""
    return row_bytes([spec]) if spec.position is None else row_pages(spec) * page_bytes([spec])


def reads(size: Size, form: Form) -> Reads:
    """Return the minimum bytes that a tick reads, from shapes only; embeddings count in memory only."""
    mimi, model = empty_modules(size, form)
    lm = list(_linear_bytes(model, form))
    mimi_bytes = sum(tensor.nbytes for tensor in mimi.state_dict().values())
    plain = {id(child.weight) for child in model.modules() if isinstance(child, Linear)}
    tables = sum(tensor.nbytes for tensor in model.parameters() if id(tensor) not in plain)
    config = model.transformer.config
    ring = config.layers * config.kv_heads * form.kv.position_bytes(config.head_dim, form.dtype)
    cross = 2 * config.layers * size.cross_positions * config.dim * form.dtype.itemsize
    codec = row_bytes(codec_specs(mimi, size.kind))
    return Reads(
        weights_bytes=mimi_bytes + sum(bytes_ * uses for bytes_, uses in lm),
        kv_bytes_per_frame=ring,
        other_row_bytes=cross + codec,
        context=config.context,
        state_bytes=sum(map(paged_bytes, model.specs())) + codec,
        resident_bytes=mimi_bytes + tables + sum(bytes_ for bytes_, _ in lm),
    )


def _linear_bytes(model: LanguageModel, form: Form) -> Iterator[tuple[int, int]]:
    """Every linear's bytes, and how often a tick reads it: the depformer's steps share weights."""
    schedule = [] if model.depformer is None else list(model.depformer.config.schedule)
    for name, child in model.named_modules():
        if not isinstance(child, Linear):
            continue
        size = child.weight.numel() * form.dtype.itemsize
        if form.bits < 16 and follows_recipe(name):
            scales = 4 * child.out_features if form.bits == 8 else child.weight.numel() // BLOCK * 2
            size = child.weight.numel() * form.bits // 8 + scales
        step = _STEP.match(name)
        is_shared = step is not None and not (step[1] and not model.config.get("depformer_multi_linear"))
        uses = 1
        if step is not None:
            uses = schedule.count(int(step[2])) if is_shared else len(schedule)
        yield size, uses
