"""A whole run: every model loaded, then turn by turn, then the card."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime

from antiphon.engine.memory import host_bytes
from antiphon.errors import ConfigError
from antiphon_quantize.bench.card import SCHEMA, Card, Entry
from antiphon_quantize.bench.player import Player
from antiphon_quantize.bench.quality import Quality
from antiphon_quantize.bench.summary import summarise, timely_rows
from antiphon_quantize.bench.ticks import TickPlan, TickTurn

Tell = Callable[[str], None]


def take_turns(players: Mapping[str, Player], plan: TickPlan, tell: Tell) -> dict[str, list[TickTurn]]:
    """The turns of every model at every number of rows: A, B, A, B, so that a disturbance meets all."""
    turns: dict[str, list[TickTurn]] = {label: [] for label in players}
    for number in range(1, plan.turns + 1):
        for rows in plan.rows:
            for label, player in players.items():
                turn = player.take_turn(rows)
                turns[label].append(turn)
                middle_ms = 1000 * sorted(turn.tick_s)[len(turn.tick_s) // 2]
                tell(
                    f"turn {number}/{plan.turns}, {rows} rows, {label}: {middle_ms:.2f} ms a tick, "
                    f"{turn.frames / turn.frames_s:.1f} frames/s"
                )
    return turns


def run(
    makers: Sequence[tuple[str, Callable[[], Player]]],
    plan: TickPlan,
    *,
    baseline: str | None,
    quality: Callable[[str], Quality | None],
    command: str,
    now: datetime,
    tell: Tell,
) -> Card:
    """Load every model by its maker, measure them alternately, ask for their quality, and make the card.

    ``makers`` have a label each, in order; ``baseline`` is one of them or None. ``quality`` is asked by
    label once the players have ended, so that it finds the memory free.

    Raises:
        ConfigError: frames of different lengths, which cannot be paced together.
        BackendError: one of them cannot be run.
    """
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        players: dict[str, Player] = {}
        for label, make in makers:
            tell(f"loading {label}")
            players[label] = make()
            stack.callback(players[label].close)
        frame_ms = _frame_ms(players)
        turns = take_turns(players, plan, tell)
        memory = {label: player.memory() for label, player in players.items()}
        facts = {label: player.facts for label, player in players.items()}
    results = summarise(turns, plan, frame_ms=frame_ms, baseline=baseline)
    return Card(
        schema=SCHEMA,
        started_at=now.isoformat(timespec="seconds"),
        command=command,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        memory_bytes=host_bytes(),
        load_average=round(load, 2),
        plan=plan,
        baseline=baseline,
        entries=tuple(
            Entry(
                label,
                facts[label],
                results[label],
                *timely_rows(results[label], frame_ms),
                memory[label],
                None if label == baseline else quality(label),
            )
            for label in facts
        ),
    )


def _frame_ms(players: Mapping[str, Player]) -> float:
    lengths = {label: player.facts.frame_ms for label, player in players.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{label} {length:g} ms" for label, length in lengths.items())
        raise ConfigError(f"frames of different lengths cannot be compared: {told}")
    return next(iter(lengths.values()))
