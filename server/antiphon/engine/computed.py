"""The rows that a known card should answer in time: computed before anything is timed."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.backends.base import BackendInfo
from antiphon.engine.capacity import calls_in_time, tick_limit_s
from antiphon.engine.config import EngineConfig
from antiphon.models.cards import GpuCard, card_called
from antiphon.models.costs import TickWork, rows_computed
from antiphon.models.spec import PipelineKind


@dataclass(frozen=True, slots=True)
class ComputedSlots:
    """Slots that should be answered in time: ``ready_rows`` of them a tick, which takes ``tick_ms``."""

    slots: int
    ready_rows: int
    tick_ms: float
    card: GpuCard


def computed_slots(info: BackendInfo, config: EngineConfig, models: int = 1) -> ComputedSlots | None:
    """Of a backend on a card whose constants are known; None of any other."""
    card = card_called(info.device_name)
    if card is None or not info.work:
        return None
    return slots_on(card, TickWork(**info.work), info.kind, info.spec.frame_ms, config, models)


def slots_on(
    card: GpuCard, work: TickWork, kind: PipelineKind, frame_ms: float, config: EngineConfig, models: int = 1
) -> ComputedSlots:
    """From a card's constants and what a tick asks of it, of rows at full context.

    A tts model's rows are all ready in every tick, which may take the frame, less the reserve. Of another,
    two ticks must fit, and more calls than ready rows do (:func:`calls_in_time`).
    """
    reserve, is_spoken = config.tick_reserve_fraction, not kind.has_deadlines
    limit_s = tick_limit_s(frame_ms / 1000, reserve_fraction=reserve, models=models)
    rows = rows_computed(work, card, 1000 * limit_s * (2 if is_spoken else 1), config.max_slots)
    is_packed = not is_spoken and not config.fixed_batch
    slots = calls_in_time(rows, reserve_fraction=reserve) if is_packed else rows
    return ComputedSlots(min(slots, config.max_slots), rows, work.tick_ms(rows, card), card)
