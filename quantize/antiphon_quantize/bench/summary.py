"""From the turns of a run to the numbers of a card."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from antiphon.engine.config import EngineConfig
from antiphon.engine.sizing import TickTime, rows_in_time, tick_limit_s
from antiphon.ipc.values import percentile
from antiphon_quantize.bench.card import RowsResult, Spread
from antiphon_quantize.bench.ticks import TickPlan, TickTurn


def summarise(
    turns: Mapping[str, Sequence[TickTurn]], plan: TickPlan, *, frame_ms: float, baseline: str | None
) -> dict[str, tuple[RowsResult, ...]]:
    """Every model's results, one per number of rows, from its turns in the order they were taken.

    Speed is given as a ratio to ``baseline``'s of the same turn, or the first model's when that is None;
    a ratio to itself is none.
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
    """Median, least and largest."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found))


def timely_rows(results: Sequence[RowsResult], frame_ms: float) -> tuple[int, bool]:
    """The most rows whose p99 tick is answered in time, by the server's own rule, and whether it is a bound.

    The rule is :func:`antiphon.engine.sizing.tick_limit_s` with the server's reserve. It is a lower bound
    where even the most rows that were measured are in time; 0 where the fewest, 1 or more, are not.
    """
    limit_s = tick_limit_s(frame_ms / 1000, reserve_fraction=EngineConfig().tick_reserve_fraction)
    ticks = [TickTime(result.rows, result.p99_ms / 1000) for result in results]
    if ticks[0].seconds > limit_s:
        return 0, False
    return rows_in_time(ticks, limit_s), all(tick.seconds <= limit_s for tick in ticks)
