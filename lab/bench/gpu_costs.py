"""Computes the time of a tick of the published sizes on a GPU, by stage, for comparison with measurements.

The arithmetic is the server's (``antiphon.models.costs``), with a model's exact bytes and counted launches.
All values are computed, from constants fitted to an H100 (``GpuCard.is_measured``); ``lab.bench.gpu_fit``
compares them with its measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from antiphon.models.costs import (
    H200,
    START_S,
    GpuCard,
    Launches,
    StageCost,
    TickWork,
    card_called,
    codec_cost,
)
from lab.bench.gpu_models import Form, Size, reads

NODES: Final[Mapping[tuple[str, str], Launches]] = {
    ("moshi-7b", "encode"): Launches(183, 183, 183, 183),
    ("moshi-7b", "lm"): Launches(750, 718, 622, 478),
    ("moshi-7b", "decode"): Launches(180, 180, 180, 180),
    ("stt-1b", "encode"): Launches(279, 279, 279, 279),
    ("stt-1b", "lm"): Launches(187, 171, 171, 123),
    ("tts-1.6b", "lm"): Launches(1465, 1481, 1225, 1017),
    ("tts-1.6b", "decode"): Launches(180, 180, 180, 180),
}
"""Kernels by model and stage, counted on the meta device."""


INT8: Final = Form.of(is_int8=True)


def card_of(name: str) -> GpuCard:
    """Return the constants of the device of this name; an H200's if it is unknown."""
    return card_called(name) or H200


def stage_costs(
    size: Size, rows: int, frames: int, card: GpuCard, form: Form | None = None
) -> dict[str, StageCost]:
    """Compute the cost of each stage of a tick over ``rows`` rows that have received ``frames`` frames; by
    default in INT8."""
    return costs_of(size.name.partition(",")[0], work_of(size, form or INT8), rows, frames, card)


def costs_of(name: str, work: TickWork, rows: int, frames: int, card: GpuCard) -> dict[str, StageCost]:
    """Compute the cost of each stage, as :func:`stage_costs`, from a model's ``work``, which takes a while to
    sum up; the first stage waits for the host."""
    found = {
        stage: work.model_cost(rows, frames, card, nodes.of(rows, work.weight_bits))
        if stage == "lm"
        else codec_cost(rows, card, nodes.of(rows, work.weight_bits))
        for (model, stage), nodes in NODES.items()
        if model == name
    }
    first = next(iter(found))
    return found | {first: replace(found[first], nodes_ms=found[first].nodes_ms + 1000 * START_S)}


def tick_ms(costs: Mapping[str, StageCost], card: GpuCard) -> float:
    """Return the milliseconds of a whole tick: its stages one after another, and the host's part outside
    them."""
    return 1000 * card.host_s + sum(cost.ms for cost in costs.values())


def work_of(size: Size, form: Form) -> TickWork:
    """Compute the work of a tick of the model ``size`` on a GPU, from its shapes only."""
    cost, lm = reads(size, form), size.lm
    return TickWork(
        weights_bytes=cost.weights_bytes,
        frame_bytes=cost.kv_bytes_per_frame,
        context=cost.context,
        row_bytes=2 * lm["num_layers"] * size.cross_positions * lm["dim"] * form.dtype.itemsize,
        passes=sum(1 for model, stage in NODES if model == size.name.partition(",")[0] and stage != "lm"),
        layers=lm["num_layers"],
        cross_layers=lm["num_layers"] if size.cross_positions else 0,
        steps=lm["dep_q"],
        step_layers=lm["depformer_num_layers"] if lm["dep_q"] else 0,
        weight_bits=form.bits,
    )
