"""Measures Mimi and an stt-1b language model on a CPU, upstream's and ours (torch, ONNX) alternately, and a
call of an hour.

    python -m lab.bench.cpu_models                      Mimi and the LM, torch and ONNX, batch 1, 4 and 8
    python -m lab.bench.cpu_models --only hour          60 minutes of one call, as fast as it goes
    python -m lab.bench.cpu_models --only mimi --batch 1
    python -m lab.bench.cpu_models --only onnx --threads 2 --batch 1 --batch 8 --spin   ONNX and upstream
    python -m lab.bench.cpu_models --only roofline --threads 2      every stage, tiny's too, with its floor
    python -m lab.bench.cpu_models --only memory --threads 2 --batch 1 --batch 8        a process for each
    python -m lab.bench.cpu_models --quick              everything small, in seconds, to see that it works

Weights are random and the same on both sides; sizes are the published ones. The two alternate, so that other
load on the machine affects both. On a busy machine two threads wait for each other, which distorts the
result: with one thread (the default) the thread's own CPU time is counted, with more threads the clock's.
Upstream runs unchanged, including its compiled parts; --eager excludes these. The ONNX graphs are exported
once, into --graphs, and reused by later runs (lab/bench/onnx_models.py).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from moshi.models.lm import LMModel
from moshi.utils.compile import no_compile

from antiphon.backends.torch.loading import attention_dtype, make
from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.state import State
from antiphon.backends.torch.weights import assign, lm_tensors
from antiphon.models.catalog import load_checkpoint
from lab.bench import cpu_roofline, model_memory, onnx_models
from lab.bench.harness import Results, Values, machine_line, tell, warn_if_busy
from lab.bench.long_call import Call, judge_call, measure_call, render_call
from lab.bench.pages import write_page
from lab.bench.published import STT_1B
from lab.bench.seeded_models import SMALL_LM, make_lm, make_mimi
from lab.bench.turns import UNTIMED_TURNS, clock_name, take_turns
from tests.support.small_models import mimi_config

KINDS = ("median_ms", "best_ms")
PARTS = ("roofline", "mimi", "lm", "onnx", "memory", "hour")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the models, and the number of measurements. ``mimi`` None is the full-size one."""

    mimi: Mapping[str, Any] | None = None
    lm: Mapping[str, Any] = field(default_factory=lambda: STT_1B)
    turns: int = 30
    call: Call = field(default_factory=Call)


QUICK = Sizes(mimi_config(), SMALL_LM, turns=2, call=Call(minutes=3, frames_per_minute=5))


def measure_mimi(batch: int, codebooks: int, sizes: Sizes) -> Values:
    """Time the encoding and the decoding of one frame for ``batch`` rows, upstream's and ours."""
    upstream, ours = make_mimi(codebooks, sizes.mimi)
    pcm = torch.randn(batch, ours.frame_samples) * 0.1
    state = State(ours.specs(), batch)
    with upstream.streaming(batch):
        codes = upstream.encode(pcm[:, None])
        same = ours.encode(pcm, state.step()) == codes
        times = take_turns(
            {
                "upstream encode": lambda: upstream.encode(pcm[:, None]),
                "ours encode": lambda: ours.encode(pcm, state.step()),
                "upstream decode": lambda: upstream.decode(codes),
                "ours decode": lambda: ours.decode(codes, state.step()),
            },
            sizes.turns,
        )
    return {"times": times, "codes_equal": float(same.float().mean())}


def adopt_lm(upstream: LMModel, config: Mapping[str, Any], *, int8: bool) -> LanguageModel:
    """Return our language model with the weights of ``upstream``."""
    with torch.device("meta"):
        compute = Compute(upstream.dtype, attention_dtype(torch.device("cpu")))
        ours = LanguageModel(config, steps=0, compute=compute)
    tensors = {name: tensor.clone() for name, tensor in lm_tensors(upstream.state_dict(), ours).items()}
    assign(ours, tensors, Path("seeded"))
    return ours.prepare(pack=True, int8=int8)


def lm_calls(
    upstream: LMModel, forms: Mapping[str, LanguageModel], batch: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a name and a callable for one step of upstream's model and of each of ``forms``; ours have full
    rings (upstream always reads all of its ring)."""
    tokens = torch.randint(upstream.card, (batch, 33, 1))
    yield "upstream", lambda: upstream.forward_text(tokens)
    for name, model in forms.items():
        state = State(model.specs(), batch)
        state.tensors["lm.position"].fill_(model.config["context"])

        def call(model: LanguageModel = model, state: State = state) -> object:
            return model(tokens, state.step())

        yield name, call


def measure_lm(dtype: torch.dtype, batches: Sequence[int], sizes: Sizes) -> Values:
    """Time the temporal transformer's step in one dtype; INT8 weights are compared with bfloat16."""
    upstream = make_lm(sizes.lm, dtype)
    forms = {"ours": adopt_lm(upstream, sizes.lm, int8=False)}
    if dtype == torch.bfloat16:
        forms["ours int8"] = adopt_lm(upstream, sizes.lm, int8=True)
    found = {}
    for batch in batches:
        with upstream.streaming(batch):
            found[str(batch)] = take_turns(dict(lm_calls(upstream, forms, batch)), sizes.turns)
    return {"times": found}


def measure_hour(model: str, threads: int, sizes: Sizes) -> Values:
    """Measure a long call of a model on the torch backend."""
    return measure_call(make(load_checkpoint(model), slots=1, device="cpu", threads=threads), sizes.call)


def render(values: Values) -> str:
    """Return the results in Markdown."""
    settings = values["settings"]
    about = (
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}. {settings['threads']} thread(s), "
        f"{settings['clock']}; {settings['turns']} turns after {UNTIMED_TURNS} that do not count; upstream "
        f"{'eager' if settings['eager'] else 'with the parts it compiles compiled'}."
    )
    parts = ["# Models on CPU", about]
    rows = [row for key, found in values["attempts"].items() for row in _rows(key, found)]
    if rows:
        head = (
            "Median in ms (lower to upper quartile); how many times as fast, by medians (by the bests)."
            "\n\n| | batch | upstream ms | ours ms | times as fast |\n|---|---|---|---|---|"
        )
        parts += ["\n".join([head, *rows])]
    parts += filter(
        None, (part.render(values["attempts"]) for part in (cpu_roofline, onnx_models, model_memory))
    )
    if hour := values["attempts"].get("hour"):
        parts += [render_call(hour)]
    return "\n\n".join(parts) + "\n"


def _rows(key: str, found: Values) -> Iterator[str]:
    if key.startswith("mimi"):
        times = found["times"]
        for what in ("encode", "decode"):
            yield _row(f"Mimi {what}", key.split()[1], times[f"upstream {what}"], times[f"ours {what}"])
        both = [
            {kind: times[f"{who} encode"][kind] + times[f"{who} decode"][kind] for kind in KINDS}
            for who in ("upstream", "ours")
        ]  # sums have no quartiles
        yield _row("**Mimi encode + decode**", key.split()[1], *both)
    elif key.startswith("lm"):
        for batch, times in found["times"].items():
            for name in [name for name in times if name != "upstream"]:
                yield _row(f"stt-1b step, {key.split()[1]}, {name}", batch, times["upstream"], times[name])


def _row(what: str, batch: str, upstream: Values, ours: Values) -> str:
    faster = [upstream[kind] / ours[kind] for kind in KINDS]
    return f"| {what} | {batch} | {_cell(upstream)} | {_cell(ours)} | {faster[0]:.2f} ({faster[1]:.2f}) |"


def _cell(found: Values) -> str:
    low_high = found.get("quartiles_ms")
    spread = "" if low_high is None else f" ({low_high[0]:.2f} to {low_high[1]:.2f})"
    return f"{found['median_ms']:.2f}{spread}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 if a long call was measured and its cost or memory grew, else 0."""
    options = _parse(argv)
    sizes: Sizes = options.sizes
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    settings = {
        "threads": options.threads,
        "clock": clock_name(),
        "turns": sizes.turns,
        "codebooks": options.codebooks,
        "batches": options.batch,
        "eager": options.eager,
        "spin": options.spin,
        "quick": options.quick,
        "model": options.model,
        "call": asdict(sizes.call),
    }
    results = Results(options.out / "cpu-models.json", settings=settings, resume=options.resume)
    warn_if_busy()
    try:
        with torch.no_grad(), no_compile() if options.eager else nullcontext():
            for key, run in _parts(options):
                tell(key)
                results.attempt(key, run)
                gc.collect()
    finally:
        torch.set_num_threads(before)
    print(write_page(options.out / "cpu-models.md", render(results.values)), end="")
    hour = results.values["attempts"].get("hour")
    return 0 if hour is None or options.quick or judge_call(hour)["holds"] else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lab.bench.cpu_models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--only", choices=PARTS, action="append", help="[all but hour]")
    parser.add_argument("--batch", type=int, action="append", help="[1, 4 and 8]")
    parser.add_argument("--threads", type=int, default=1, help="1 counts CPU time [%(default)s]")
    parser.add_argument("--turns", type=int, help=f"[{Sizes().turns}]")
    parser.add_argument("--codebooks", type=int, default=8, help="[%(default)s]")
    parser.add_argument("--minutes", type=int, help=f"of the call [{Call().minutes}]")
    parser.add_argument("--model", default="tiny", help="of the call [%(default)s]")
    parser.add_argument("--eager", action="store_true", help="compile nothing of upstream's either")
    parser.add_argument("--graphs", type=Path, default=Path("out/bench/graphs"), help="[%(default)s]")
    parser.add_argument("--spin", action="store_true", help="also on threads that spin; roofline: only so")
    parser.add_argument("--quick", action="store_true", help="everything, small, in seconds")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    options = parser.parse_args(argv)
    sizes = QUICK if options.quick else Sizes()
    call = replace(sizes.call, minutes=options.minutes or sizes.call.minutes)
    options.sizes = replace(sizes, turns=options.turns or sizes.turns, call=call)
    options.batch = options.batch or [1, 4, 8]
    options.only = options.only or (PARTS if options.quick else PARTS[:5])
    return options


def _parts(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Values]]]:
    if "mimi" in options.only:
        for batch in options.batch:
            yield f"mimi {batch}", partial(measure_mimi, batch, options.codebooks, options.sizes)
    if "lm" in options.only:
        yield "lm bf16", partial(measure_lm, torch.bfloat16, options.batch, options.sizes)
        yield "lm float32", partial(measure_lm, torch.float32, options.batch, options.sizes)
    if {"roofline", "onnx", "memory"} & set(options.only):
        yield from _graph_parts(options)
    if "hour" in options.only:
        yield "hour", partial(measure_hour, options.model, options.threads, options.sizes)


def _graph_parts(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Values]]]:
    size = "small" if options.quick else "full"
    setting = onnx_models.Setting(options.graphs, size, options.threads, options.spin, options.sizes.turns)
    if "roofline" in options.only:
        yield "roofline", partial(cpu_roofline.measure_roofline, setting)
    for model, batch in itertools.product(("mimi", "lm"), options.batch):
        if "onnx" in options.only:
            yield f"onnx {model} {batch}", partial(onnx_models.measure_model, model, batch, setting)
    for model, batch in itertools.product(("mimi", "lm"), options.batch):
        if "memory" in options.only:
            for form in (model_memory.UPSTREAM, *onnx_models.FORMS[model]):
                yield f"memory {model} {form} {batch}", partial(_memory, setting, model, form, batch)


def _memory(setting: onnx_models.Setting, model: str, form: str, rows: int) -> Values:
    return model_memory.measure_memory(setting.folder(model), form, rows, setting.threads)


if __name__ == "__main__":
    sys.exit(main())
