"""What a tick of loaded modules asks of a card: bytes, layers, passes, to compute its cost."""

from __future__ import annotations

from typing import Final

from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.modules.embedding import StreamEmbeddings, TokenEmbedding
from antiphon.backends.torch.modules.linear import weight_bytes
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.quantised.int8 import Int8Linear
from antiphon.models.costs import TickWork
from antiphon.models.spec import PipelineKind

SCALE_BYTES: Final = 4
"""Of a head's keys, or values, of one position in INT8."""


def tick_work(kind: PipelineKind, mimi: Mimi, generator: Generator) -> TickWork:
    """Of a model with its codec, from its modules' own shapes and weights."""
    model, sequences = generator.model, generator.sequences
    config, compute = model.transformer.config, model.transformer.compute
    depformer = model.depformer and model.depformer.config
    element = 1 if compute.int8_kv else model.dtype.itemsize
    head_bytes = config.head_dim * element + (SCALE_BYTES if compute.int8_kv else 0)
    cross = 2 * config.layers * config.cross_positions * config.dim * model.dtype.itemsize
    return TickWork(
        weights_bytes=weight_bytes(mimi) + _read_bytes(model),
        frame_bytes=sequences * 2 * config.layers * config.kv_heads * head_bytes,
        context=config.context,
        row_bytes=sequences * cross,
        passes=kind.codec_passes,
        layers=config.layers,
        cross_layers=config.layers if config.cross_positions else 0,
        steps=depformer.steps if depformer else 0,
        step_layers=depformer.layers if depformer else 0,
        int8_weights=int(any(isinstance(child, Int8Linear) for child in model.modules())),
        int8_ring=int(compute.int8_kv),
    )


def _read_bytes(model: LanguageModel) -> int:
    """All weights but tables, of which a token reads a line; the depformer's as often as steps share them."""
    tables = [child for child in model.modules() if isinstance(child, StreamEmbeddings | TokenEmbedding)]
    read = weight_bytes(model) - sum(table.weight.nbytes for table in tables)
    if model.depformer is None:
        return read
    layers, config = weight_bytes(model.depformer.layers), model.depformer.config
    return read + layers * (config.steps - config.sets) // config.sets
