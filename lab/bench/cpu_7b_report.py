"""The page of ``lab.bench.cpu_7b``: times beside their floors, and what other machines should reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from lab.bench.cpu_rates import Rates
from lab.bench.frame_work import KEEPINGS, FrameWork, codec_work, frame_work
from lab.bench.harness import Values, machine_line
from lab.bench.turns import UNTIMED_TURNS

FRAME_MS: Final = 80
CORES: Final = (16, 32, 64)
MEMORY_GB_S: Final = (100, 200, 300, 450, 600)
COMPUTED: Final = ("onnx int4", "onnx int8")
"""The forms that are computed for other machines: those of the base installation."""
COMMAND: Final = 'python -m lab.bench.cpu_7b --threads CORES --form "onnx int4" --rows 1 --rows 4'


def render(values: Values) -> str:
    """The results in Markdown."""
    settings, attempts = values["settings"], values["attempts"]
    config = settings["config"]
    about = (
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}. {settings['threads']} thread(s), "
        f"{settings['clock']}, medians after {UNTIMED_TURNS} turns that do not count. "
        f"{config['num_layers']} layers of {config['dim']}, a depformer of "
        f"{config['depformer_num_layers']} layers of {config['depformer_dim']} and {config['dep_q']} "
        f"codebooks, rings of {config['context']} frames, full; seeded weights."
    )
    rates = best_rates(attempts)
    parts = ["# Moshi 7B on CPUs", about, _measured(attempts, config), "## Other machines"]
    return "\n\n".join([*parts, *_computed(attempts, config, rates, settings["threads"])]) + "\n"


def best_rates(attempts: Mapping[str, Values]) -> Rates:
    """The best of what each attempt's process found of the machine."""
    found = [Rates(**attempt["rates"]) for attempt in attempts.values()]
    return replace(
        found[0],
        bytes_s=max(rates.bytes_s for rates in found),
        float32_s=max(rates.float32_s for rates in found),
        bfloat16_s=max(rates.bfloat16_s for rates in found),
        int8_s=max(rates.int8_s for rates in found),
    )


def _measured(attempts: Mapping[str, Values], config: Mapping[str, Any]) -> str:
    about = (
        "The floor of a stage is, of each kind of its work, the longer of reading its weights and rings at "
        "the memory rate and of making its products, both measured in the same process just before."
    )
    lines = [
        "| form | rows | lm, ms | floor | depformer, ms | floor | together | floor's share | GB read a frame "
        "| loading, s | weights, GB | a row, GB | peak, GB |",
        "|---" * 13 + "|",
    ]
    for form, attempt in attempts.items():
        work, rates = frame_work(config, KEEPINGS[form]), Rates(**attempt["rates"])
        lines += [_row(form, int(rows), attempt, work, rates) for rows in attempt["times"]]
    said = [f"- {form}: {Rates(**attempt['rates'])}." for form, attempt in attempts.items()]
    return "\n\n".join([about, "\n".join(lines), "What each process found of the machine:", "\n".join(said)])


def _row(form: str, rows: int, attempt: Values, work: FrameWork, rates: Rates) -> str:
    times = {stage: found["median_ms"] for stage, found in attempt["times"][str(rows)].items()}
    floors = {stage: work.stage_ms(stage, rows, rates) for stage in times}
    stages = [f"{times[stage]:.0f} | {floors[stage]:.0f}" for stage in times]
    sizes = (attempt[f"{what}_bytes"] / 1e9 for what in ("weights", "state", "peak"))
    together, floor = sum(times.values()), sum(floors.values())
    cells = [form, str(rows), *stages, f"{together:.0f}", f"{floor / together:.0%}"]
    cells += [f"{work.bytes / 1e9:.2f}", f"{attempt['load_s']:.0f}", *(f"{size:.2f}" for size in sizes)]
    return f"| {' | '.join(cells)} |"


def _computed(
    attempts: Mapping[str, Values], config: Mapping[str, Any], rates: Rates, threads: int
) -> Iterator[str]:
    """A table for each number of cores and each memory rate."""
    shares = {form: _share(form, attempts[form], config) for form in COMPUTED if form in attempts}
    reached = " and ".join(f"{share:.0%} ({form})" for form, share in shares.items())
    beside = f"; beside each floor, what it becomes at the share of it that was reached here: {reached}"
    yield (
        "**Computed, not measured.** The same floors with Mimi's work added, for a machine whose every core "
        "multiplies as fast as one of these and whose memory is read at the rate in the second column"
        f"{beside if shares else ''}. Sessions: the most whose frame then takes {FRAME_MS} ms, all their "
        "rings full; where no share was measured, no machine of these rates holds more. On a machine of that "
        f"kind, `{COMMAND}` measures it."
    )
    works = {form: frame_work(config, KEEPINGS[form]) for form in COMPUTED}
    head = " | ".join(f"{form}, ms | sessions" for form in COMPUTED)
    lines = [f"| cores | GB/s | {head} |", "|---" * (2 + 2 * len(COMPUTED)) + "|"]
    for cores in CORES:
        for gb_s in MEMORY_GB_S:
            there, cells = scaled(rates, cores / threads, gb_s * 1e9), [str(cores), str(gb_s)]
            for form, work in works.items():
                floor_ms = least_ms(work, 1, there)
                at_share = f", {floor_ms / shares[form]:.0f}" if form in shares else ""
                cells += [f"{floor_ms:.0f}{at_share}", str(sessions(work, there, shares.get(form, 1.0)))]
            lines.append(f"| {' | '.join(cells)} |")
    yield "\n".join(lines)


def _share(form: str, attempt: Values, config: Mapping[str, Any]) -> float:
    """The floor's part of the time of the fewest rows, 1 where caches are faster than memory."""
    rows, times = next(iter(attempt["times"].items()))
    floor_ms = frame_work(config, KEEPINGS[form]).least_ms(int(rows), Rates(**attempt["rates"]))
    return min(1.0, floor_ms / float(sum(found["median_ms"] for found in times.values())))


def scaled(rates: Rates, times: float, bytes_s: float) -> Rates:
    """A machine with so many times the cores, and another memory."""
    return replace(
        rates,
        bytes_s=bytes_s,
        float32_s=rates.float32_s * times,
        bfloat16_s=rates.bfloat16_s * times,
        int8_s=rates.int8_s * times,
    )


def least_ms(work: FrameWork, rows: int, rates: Rates) -> float:
    """The floor of a whole frame, Mimi's part included."""
    return work.least_ms(rows, rates) + 1000 * codec_work().least_s(rows, rates)


def sessions(work: FrameWork, rates: Rates, share: float) -> int:
    """The most rows that a frame's time is enough for, where floors are this share of what it takes."""
    rows = 0
    while least_ms(work, rows + 1, rates) <= share * FRAME_MS:
        rows += 1
    return rows
