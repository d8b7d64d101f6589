"""Runs a benchmark: loads all models, measures them alternately, and makes the benchmark card."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime

from antiphon.backends.machine import host_bytes
from antiphon.engine.config import EngineConfig
from antiphon.engine.tick_times import TickTime, rows_in_time, tick_limit_s
from antiphon.errors import ConfigError
from antiphon.ipc.values import percentile
from antiphon_quantize.bench.card import SCHEMA, Card, Entry, Quality, RowsResult, Spread, TickPlan
from antiphon_quantize.bench.player import Player, TickTurn


def summarise(
    turns: Mapping[str, Sequence[TickTurn]], plan: TickPlan, *, frame_ms: float, baseline: str | None
) -> dict[str, tuple[RowsResult, ...]]:
    """Every model's results, one per number of rows, from its turns in the order of measurement.

    Speed is a ratio to the speed of ``baseline`` in the same turn, or of the first model if ``baseline`` is
    None. The reference itself has no ratio.
    """
    other = baseline if baseline is not None else next(iter(turns))
    return {
        label: tuple(
            _result(
                [turn for turn in taken if turn.rows == rows],
                None if label == other else [turn for turn in turns[other] if turn.rows == rows],
                frame_ms,
            )
            for rows in plan.rows
        )
        for label, taken in turns.items()
    }


def _result(turns: Sequence[TickTurn], others: Sequence[TickTurn] | None, frame_ms: float) -> RowsResult:
    samples_ms = [1000 * seconds for turn in turns for seconds in turn.tick_s]
    speeds = [turn.frames / turn.frames_s for turn in turns]
    ratio = None
    if others is not None:
        ratio = spread(own * other.frames_s / other.frames for own, other in zip(speeds, others, strict=True))
    return RowsResult(
        rows=turns[0].rows,
        p50_ms=percentile(samples_ms, 0.5),
        p95_ms=percentile(samples_ms, 0.95),
        p99_ms=percentile(samples_ms, 0.99),
        max_ms=max(samples_ms),
        turn_p50_ms=spread(1000 * percentile(turn.tick_s, 0.5) for turn in turns),
        late=sum(turn.late for turn in turns),
        frames_per_s=spread(speeds),
        realtime_factor=statistics.median(speeds) * frame_ms / 1000,
        speed_ratio=ratio,
        samples_ms=tuple(round(sample, 4) for sample in samples_ms),
    )


def spread(values: Iterable[float]) -> Spread:
    """The median, the smallest and the largest of some values."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found))


def timely_rows(results: Sequence[RowsResult], frame_ms: float) -> tuple[int, bool]:
    """The largest number of rows whose p99 tick is in time by the server's rule, and whether this is a lower
    bound.

    The rule is :func:`antiphon.engine.tick_times.tick_limit_s` with the server's reserve. The number is a
    lower bound if the largest measured number of rows is in time, and 0 if the smallest is not.
    """
    limit_s = tick_limit_s(frame_ms / 1000, reserve_fraction=EngineConfig().tick_reserve_fraction)
    ticks = [TickTime(result.rows, result.p99_ms / 1000) for result in results]
    if ticks[0].seconds > limit_s:
        return 0, False
    return rows_in_time(ticks, limit_s), all(tick.seconds <= limit_s for tick in ticks)


Tell = Callable[[str], None]


def take_turns(players: Mapping[str, Player], plan: TickPlan, tell: Tell) -> dict[str, list[TickTurn]]:
    """Measure every model at every number of rows, ``plan.turns`` times.

    Models alternate (A, B, A, B), so that a disturbance affects all of them.
    """
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
    """Load every model, measure them alternately, judge their quality, and make the card.

    ``makers`` maps labels to functions, in order; ``baseline`` is a label or None. ``quality`` is called with
    each label after the players have ended and their memory is free.

    Raises:
        ConfigError: the models' frames have different lengths, so they cannot be paced together.
    """
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        players: dict[str, Player] = {}
        for label, make in makers:
            tell(f"loading {label}")
            players[label] = make()
            stack.callback(players[label].close)
        lengths = {label: player.facts.frame_ms for label, player in players.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{label} {length:g} ms" for label, length in lengths.items())
            raise ConfigError(f"frames of different lengths cannot be compared: {told}")
        frame_ms = next(iter(lengths.values()))
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
