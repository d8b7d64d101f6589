"""Profiles a tick on a CPU with ONNX Runtime's own profiler, by operator, compared with the CPU's limits.

    python -m lab.bench.cpu_profile                              tiny, Mimi and stt-1b, batch 8, two threads
    python -m lab.bench.cpu_profile --model mimi --batch 1 --form float32
    python -m lab.bench.cpu_profile --quick                      small graphs, to see that it works

The graphs of Mimi and stt-1b are those of ``lab.bench.cpu_models`` (exported once, into --graphs), those of
tiny are the shipped ones; all are opened and bound as in the server: state is updated in place. Profiling
costs time for every node, so a second session without it alternates with the first; its time is reported,
too. A node's bytes are the weights and the rings that it reads, its multiplications those of its shapes; the
minimum time for these is measured first, on the same number of threads.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.models.catalog import load_checkpoint
from lab.bench.cpu_rates import Rates, measure_rates
from lab.bench.harness import Results, Values, machine_line, tell, warn_if_busy
from lab.bench.onnx_graphs import GraphFile
from lab.bench.onnx_models import RECIPES, Setting
from lab.bench.onnx_work import Profile, Work, take_profile
from lab.bench.pages import write_page
from lab.bench.turns import UNTIMED_TURNS, summary

LEAST_SHARE = 0.005
"""Operators of a smaller share are combined."""
SHIPPED = "tiny"
MODELS = (SHIPPED, "mimi", "stt-1b")
QUICK_PROBE = {"floats": 1 << 20, "side": 256}


@dataclass(frozen=True, slots=True)
class Subject:
    """A stage that is profiled, and its graph."""

    model: str
    stage: str
    form: str
    file: GraphFile

    def __str__(self) -> str:
        """Its name."""
        return f"{self.model} {self.stage} {self.form}"


def subjects(model: str, form: str | None, setting: Setting) -> Iterator[Subject]:
    """Yield a model's stages in the order of a tick, in a form (None: the usual one); exports them if needed.

    tiny is always in its shipped form.
    """
    if model == SHIPPED:
        checkpoint = load_checkpoint(SHIPPED)
        for stage in checkpoint.graphs:
            yield Subject(model, stage, "as shipped", GraphFile.shipped(checkpoint, stage))
        return
    is_lm = model != "mimi"
    folder = setting.folder("lm" if is_lm else "mimi")
    form = form or ("int4" if is_lm else "int8")
    for stage in ("lm",) if is_lm else ("encode", "decode"):
        yield Subject(model, stage, form, GraphFile.exported(folder, form, stage))


def profile_stage(file: GraphFile, rows: int, threads: int, runs: int, rates: Rates) -> Values:
    """Profile one frame of a stage by operator, the median of ``runs``."""
    run = file.rows(file.session(threads), rows).prepare(range(rows))
    plain_ms: list[float] = []

    def beside() -> None:
        start_s = time.perf_counter()
        run()
        plain_ms.append(1000 * (time.perf_counter() - start_s))

    profile = take_profile(file, rows, threads, runs, beside)
    return {"unprofiled": summary(plain_ms[UNTIMED_TURNS:]), **by_operator(profile, rates)}


def by_operator(profile: Profile, rates: Rates) -> Values:
    """Return for each operator, over the runs that count: its ms in a run, its bytes, its products, and the
    minimum time for these."""
    runs = profile.runs
    operators: dict[str, dict[str, Any]] = {}
    for index, run in enumerate(runs):
        for event in profile.kernels_of(run):
            name, work = profile.work_of(event)
            found = operators.setdefault(work.operator, {"ms": [0.0] * len(runs), "works": {}})
            found["ms"][index] += event["dur"] / 1000
            found["works"][name] = work
    return {
        "run": summary([run["dur"] / 1000 for run in runs]),
        "kernels": summary([sum(o["ms"][index] for o in operators.values()) for index in range(len(runs))]),
        "operators": {name: _summarise(found, rates) for name, found in operators.items()},
    }


def _summarise(found: Mapping[str, Any], rates: Rates) -> Values:
    works: list[Work] = list(found["works"].values())
    return {
        **summary(found["ms"]),
        "nodes": len(works),
        "cold_bytes": sum(work.weight_bytes + work.state_bytes for work in works),
        "products": sum(work.products for work in works),
        "least_ms": 1000 * sum(work.least_s(work.rows, rates) for work in works),
    }


def render(values: Values) -> str:
    """Return the results in Markdown."""
    settings, rates = values["settings"], Rates(**values["attempts"]["rates"])
    about = (
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}. {settings['threads']} thread(s) of ONNX Runtime, "
        f"sleeping where they wait; {settings['runs']} runs after {UNTIMED_TURNS} that do not count, each "
        "compared with one without a profile. State is updated where it lies, rings are full."
    )
    about_rates = (
        "Medians (lower to upper quartile) of a frame's wall-clock time. MB: weights and rings that an "
        f"operator reads; G: multiplications. Next to them is their time at {rates}, the best that torch "
        "reached on as many threads: a yardstick and no bound, since ONNX Runtime's own products may be "
        "faster, and what a cache holds from frame to frame is read sooner. Operators that read nothing but "
        "what the one before them wrote have none."
    )
    parts = ["# A tick by operator", about, about_rates]
    parts += [_section(key, found, settings) for key, found in values["attempts"].items() if key != "rates"]
    return "\n\n".join(parts) + "\n"


def _section(subject: str, found: Values, settings: Values) -> str:
    total_ms = sum(operator["median_ms"] for operator in found["operators"].values())
    ordered = sorted(found["operators"].items(), key=lambda item: -item[1]["median_ms"])
    told = [item for item in ordered if item[1]["median_ms"] >= LEAST_SHARE * total_ms]
    lines = [_line(name, operator, total_ms) for name, operator in told]
    if rest := ordered[len(told) :]:
        ms = sum(operator["median_ms"] for _, operator in rest)
        count = sum(operator["nodes"] for _, operator in rest)
        lines.append(f"| {len(rest)} others | {count} | {ms / total_ms:.1%} | {ms:.2f} | | | |")
    times = (
        f"A run takes {_spread(found['unprofiled'])} ms without a profile, {_spread(found['run'])} ms with "
        f"one, of which kernels {_spread(found['kernels'])} ms."
    )
    head = "| operator | nodes | share | ms a frame | MB | G | at that rate, ms |\n" + "|---" * 7 + "|"
    title = f"## {subject}, batch {settings['batch']}"
    return "\n\n".join([title, times, "\n".join([head, *lines])])


def _line(name: str, found: Values, total_ms: float) -> str:
    least_ms = f"{found['least_ms']:.2f}" if found["least_ms"] >= 0.005 else ""
    return (
        f"| {name} | {found['nodes']} | {found['median_ms'] / total_ms:.1%} | {_spread(found)} | "
        f"{_some(found['cold_bytes'] / 1e6)} | {_some(found['products'] / 1e9)} | {least_ms} |"
    )


def _some(number: float) -> str:
    return f"{number:.2f}" if number >= 0.005 else ""


def _spread(found: Values) -> str:
    low, high = found["quartiles_ms"]
    return f"{found['median_ms']:.2f} ({low:.2f} to {high:.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parse(argv)
    settings = {
        "models": options.model,
        "batch": options.batch,
        "form": options.form,
        "threads": options.threads,
        "runs": options.runs,
    }
    results = Results(options.out / "cpu-profile.json", settings=settings, resume=False)
    warn_if_busy()
    setting = Setting(options.graphs, options.size, options.threads, spin=False, turns=0)
    rates = measure_rates(options.threads, **(QUICK_PROBE if options.quick else {}))
    results.attempt("rates", rates.to_json)
    for model in options.model:
        for subject in subjects(model, options.form, setting):
            tell(str(subject))
            found = profile_stage(subject.file, options.batch, options.threads, options.runs, rates)
            results.values["attempts"][str(subject)] = found
    results.save()
    print(write_page(options.out / "cpu-profile.md", render(results.values)), end="")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lab.bench.cpu_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--model", choices=MODELS, action="append", help="[all of them]")
    parser.add_argument("--batch", type=int, default=8, help="[%(default)s]")
    parser.add_argument("--form", choices=RECIPES, help="of Mimi and stt-1b [int8 and int4]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--runs", type=int, help="[60]")
    parser.add_argument("--graphs", type=Path, default=Path("out/bench/graphs"), help="[%(default)s]")
    parser.add_argument("--quick", action="store_true", help="small graphs, a few runs")
    options = parser.parse_args(argv)
    options.size = "small" if options.quick else "full"
    options.runs = options.runs or (3 if options.quick else 60)
    options.model = options.model or MODELS
    return options


if __name__ == "__main__":
    sys.exit(main())
