"""What ``lab.bench.recipes`` found, in Markdown: what each recipe costs, and what it does to a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from lab.bench.harness import Values, machine_line

Measures: TypeAlias = dict[str, dict[str, Any]]

NOTES: Final = {
    "torch fp8": "no product of FP8 on this CPU: expanded when loaded",
    "mlx": "made for Apple's GPUs; a CPU multiplies its rounded weights row by row",
}
"""What a time does not tell, by row or by target."""
CRITICAL: Final = (
    ("pad", "text padding shift"),
    ("end of pad", "text end of padding shift"),
    ("end of pad, worst", "text end of padding worst"),
)
CODEC: Final = (
    ("semantic codes", "codec semantic codes"),
    ("all codes", "codec codes"),
    ("SI-SDR dB", "codec si-sdr"),
    ("STOI loss", "codec stoi loss"),
    ("mel loss dB", "codec mel loss"),
    ("PESQ loss", "codec pesq loss"),
)


def render(values: Values) -> str:
    """Every table that the results have rows for."""
    settings, attempts = values["settings"], values["attempts"]
    failed = {name: found["why"] for name, found in attempts.items() if "why" in found}
    rows = {name: found for name, found in attempts.items() if "why" not in found}
    judged = {name: measures_of(found) for name, found in rows.items() if "gate" in found}
    asked = f" {settings['questions']} spoken questions were asked." if settings["questions"] else ""
    material = next((found["gate"]["material"] for found in rows.values() if "gate" in found), "")
    parts = [
        f"# Every recipe, of {settings['model']}",
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}.",
        f"Baseline: {settings['model']} on torch in {'bfloat16' if settings['speed_only'] else 'float32'} "
        f"(weights sha256 {settings['sha256'][:12]}). Times are medians of whole frames of one session, "
        "codec included, taken by turns with the baseline's; peaks are of the process that quantised, all of "
        f"its programs included; sizes and memory are of what the backend reads and holds.{asked}"
        + (f" Judged on: {material}." if material else ""),
        "\n".join(_costs(rows)),
    ]
    if judged:
        parts += [
            "## Answers, critical tokens, codec",
            "\n".join(quality_table(rows, judged)),
            *_reasons(judged),
        ]
        parts += ["## Stream by stream", "\n".join(stream_table(judged))]
    if failed:
        parts += ["## Not measured here", "\n".join(f"- {name}: {why}" for name, why in failed.items())]
    return "\n\n".join(parts) + "\n"


def measures_of(found: Values) -> Measures:
    return {row["measure"]: row for row in found["gate"]["measures"]}


def table(head: Sequence[str], lines: Iterator[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---" * len(head) + "|"
    for line in lines:
        yield "| " + " | ".join(line) + " |"


def _costs(rows: Values) -> Iterator[str]:
    head = ("recipe", "quantising, s", "peak, GB", "size, MB", "of float's", "memory, MB", "of float's")
    timed = any("candidate" in found for found in rows.values())
    times = ("a frame, ms", "float's, ms", "times as fast")
    more = ("of it the model, ms", "float's, ms") if timed else ()
    return table((*head, *times, *more, ""), (_cost(name, found) for name, found in rows.items()))


def _cost(name: str, found: Values) -> list[str]:
    made = found.get("quantize")
    cells = [name, "-", "-"] if made is None else [name, f"{made['seconds']:.0f}", _gb(made["peak_bytes"])]
    if "gate" in found:
        measures = measures_of(found)
        size, memory, speed = (measures[f"{what} ratio"] for what in ("size", "memory", "speed"))
        for ratio in (size, memory):
            cells += [f"{ratio['candidate']:.1f}", f"{ratio['value']:.0%}"]
        ticks, lm = (speed["candidate"], speed["baseline"]), []
    else:
        one, other = found["baseline"], found["candidate"]
        for what in ("disk_bytes", "memory_bytes"):
            cells += [f"{other[what] / 1e6:.0f}", f"{other[what] / one[what]:.0%}"]
        ticks, lm = (other["tick_ms"], one["tick_ms"]), [f"{side['lm_ms']:.1f}" for side in (other, one)]
    cells += [f"{ticks[0]:.1f}", f"{ticks[1]:.1f}", f"{ticks[1] / ticks[0]:.2f}", *lm]
    return [*cells, NOTES.get(name) or NOTES.get(name.split()[0], "")]


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f}"


def quality_table(rows: Values, judged: dict[str, Measures]) -> Iterator[str]:
    head = ["recipe", "answers right, float's", "its own", "loss"]
    head += [title for title, _ in (*CRITICAL, *CODEC)]
    return table(
        [*head, "gate"], (_judged(name, rows[name]["gate"], found) for name, found in judged.items())
    )


def _judged(name: str, gate: Values, found: Measures) -> list[str]:
    answers = found.get("answers loss", {"value": None})
    shares = ["-"] * 3
    if answers["value"] is not None:
        shares = [f"{answers[key]:.1%}" for key in ("baseline", "candidate", "value")]
    cells = [_number(found.get(measure)) for _, measure in (*CRITICAL, *CODEC)]
    missed = [row["measure"] for row in gate["measures"] if row["verdict"] == "FAIL"]
    return [name, *shares, *cells, "pass" if gate["passed"] else "misses " + _few(missed)]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _number(row: dict[str, Any] | None) -> str:
    value = None if row is None else row["value"]
    if value is None or isinstance(value, str):
        return "-" if value is None else str(value)
    return f"{value:.4f}" if 0.0005 <= abs(value) < 1 else f"{value:.3g}"


def _reasons(judged: dict[str, Measures]) -> list[str]:
    """Why a measure was not taken: each reason once."""
    found: dict[str, None] = {}
    for measures in judged.values():
        for row in measures.values():
            if row["verdict"] == "not measured" and not row["measure"].startswith("weights"):
                found[f"- `{row['measure']}` '-': {row['detail']}"] = None
    return ["\n".join(found)] if found else []


def stream_table(judged: dict[str, Measures]) -> Iterator[str]:
    yield "Rise of the negative log-likelihood and divergence, in nats a token, and first choices shared."
    yield ""
    first = next(iter(judged.values()))
    names = [name.removesuffix(" agreement") for name in first if name.endswith(" agreement")]
    yield from table(
        ["recipe", *names],
        ([row, *(_stream(found, name) for name in names)] for row, found in judged.items()),
    )


def _stream(found: Measures, name: str) -> str:
    parts = [found[f"{name} {what}"]["value"] for what in ("nll", "kl", "agreement")]
    if not all(isinstance(part, float | int) for part in parts):
        return "not finite"
    return f"{parts[0]:+.4f} / {parts[1]:.4f} / {parts[2]:.1%}"
