"""The results of ``lab.bench.gpu_capacity`` as text and as a figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from antiphon_client.plot import load_matplotlib
from lab.bench.harness import Values, machine_line

NOT_MEASURED = "not measured"
FRAME_MS = 80.0


def render(values: Values) -> str:
    """The whole report in Markdown."""
    device = values["device"]
    parts = [
        "# What a tick costs on a GPU",
        f"`{values['command']}`, {values['started_at']}. {device or 'No GPU'}; {machine_line(values)}.",
        _bandwidth_line(values),
    ]
    if device is None:
        parts.append("## The published sizes\n\nComputed from their shapes. Nothing here was measured.")
        parts.append("\n".join(_predicted(values)))
        parts.append("## Shrunk models on this CPU\n\nThey show that the benchmark works, and nothing else.")
    parts.append("\n".join(_measured(values)))
    parts.append("![tick by batch](gpu-capacity.png)")
    return "\n\n".join(parts) + "\n"


def _bandwidth_line(values: Values) -> str:
    measured = values["copy_bytes_per_s"]
    if measured is None:
        return (
            f"Floors are bytes over {values['assumed_bytes_per_s'] / 1e12:.1f} TB/s, a bandwidth assumed "
            "for want of a card to measure."
        )
    return (
        f"Copying on the device moves {measured / 1e12:.2f} TB/s, read and write together: "
        "the floors' bandwidth."
    )


def _form(found: Values) -> list[str]:
    return ["int8" if found[name] else "compute" for name in ("int8_weights", "int8_kv")]


def _predicted(values: Values) -> Iterator[str]:
    yield "| model | weights | KV | batch | context | memory GB | read GB | floor ms | tick ms |"
    yield "|---" * 9 + "|"
    for found in values["predictions"]:
        floor_ms = 1000 * found["tick_bytes"] / values["assumed_bytes_per_s"]
        cells = [found["model"], *_form(found), str(found["batch"]), found["context"]]
        cells += [f"{found[name] / 1e9:.2f}" for name in ("memory_bytes", "tick_bytes")]
        yield f"| {' | '.join([*cells, f'{floor_ms:.2f}', NOT_MEASURED])} |"


def _measured(values: Values) -> Iterator[str]:
    head = (
        *("who", "model", "weights", "KV", "batch", "context", "read GB", "floor ms", "tick p50 ms", "p99"),
        *("encode p50", "lm p50", "decode p50", "of bandwidth", "memory GB"),
    )
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for found in values["attempts"].values():
        yield f"| {' | '.join(_measured_cells(found, values['copy_bytes_per_s']))} |"


def _measured_cells(found: Values, bytes_per_s: float | None) -> list[str]:
    cells = [found["who"], found["model"], *_form(found), str(found["batch"]), found["context"]]
    cells.append(f"{found['tick_bytes'] / 1e9:.3f}")
    floor_ms = None if bytes_per_s is None else 1000 * found["tick_bytes"] / bytes_per_s
    cells.append(NOT_MEASURED if floor_ms is None else f"{floor_ms:.2f}")
    if "error" in found:
        return [*cells, found["error"], *[""] * 6]
    times = found["times"]
    cells += [f"{times['tick'][name]:.2f}" for name in ("p50", "p99")]
    cells += [f"{times[name]['p50']:.2f}" if name in times else "" for name in ("encode", "lm", "decode")]
    share = None if floor_ms is None else floor_ms / times["tick"]["p50"]
    cells.append(NOT_MEASURED if share is None else f"{share:.0%}")
    memory = found.get("memory_bytes")
    return [*cells, NOT_MEASURED if memory is None else f"{memory / 1e9:.1f}"]


def plot(values: Values, path: Path) -> None:
    """Tick p99 by batch, a panel a model, floors dotted.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    attempts = [found for found in values["attempts"].values() if "times" in found]
    models = list(dict.fromkeys(found["model"] for found in attempts))
    figure = load_matplotlib().Figure(figsize=(5 * max(1, len(models)), 4.5), layout="constrained")
    for index, model in enumerate(models):
        axes = figure.add_subplot(1, len(models), index + 1)
        lines: dict[str, list[Values]] = {}
        for found in attempts:
            if found["model"] == model:
                weights, kv = _form(found)
                lines.setdefault(f"{found['who']}, W {weights}, KV {kv}, {found['context']}", []).append(
                    found
                )
        for colour, (label, line) in enumerate(lines.items()):
            batches = [found["batch"] for found in line]
            p99_ms = [found["times"]["tick"]["p99"] for found in line]
            axes.plot(batches, p99_ms, "o-", color=f"C{colour % 10}", markersize=4, label=label)
            if (bytes_per_s := values["copy_bytes_per_s"]) is not None:
                floors_ms = [1000 * found["tick_bytes"] / bytes_per_s for found in line]
                axes.plot(batches, floors_ms, ":", color=f"C{colour % 10}")
        axes.axhline(FRAME_MS, color="black", linestyle="--", linewidth=1)
        axes.set(xlabel="batch", ylabel="tick p99 [ms]", xscale="log", yscale="log", title=model)
        axes.legend(fontsize="x-small")
    figure.suptitle(values["device"] or "a CPU: no GPU was measured", fontsize=10)
    figure.savefig(path, dpi=120)
