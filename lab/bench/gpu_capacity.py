"""What a tick of the published sizes costs on a GPU, ours and upstream's modules, in one run.

    python -m lab.bench.gpu_capacity                              # everything; hours, so --resume goes on
    python -m lab.bench.gpu_capacity --model moshi-7b --weights int8 --kv int8 --batch 1 --batch 64
    python -m lab.bench.gpu_capacity --quick                      # seconds: shrunk models

Weights are random and seeded, sizes the published ones. For every configuration: what has to be read and
how long that takes at the copy bandwidth measured on this card (the floor), the tick's p50 and p99 and
each stage's, memory. "empty" is the first ticks of fresh calls, "full" a whole ring in every
row. Without a GPU it says so, prints the arithmetic alone, and measures shrunk models on the CPU, which
say nothing about any GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from antiphon.backends.host import HostBackend
from antiphon.backends.torch.frames import TorchFrames
from lab.bench.gpu_models import (
    Form,
    Size,
    make_modules,
    model_spec,
    published_sizes,
    reads,
    small_size,
)
from lab.bench.gpu_report import plot, render
from lab.bench.gpu_ticks import (
    copy_bytes_per_s,
    fill_context,
    memory,
    our_tick,
    time_ticks,
    warm_up,
)
from lab.bench.gpu_upstream import upstream_tick
from lab.bench.harness import Results, Values, tell, terminable, warn_if_busy
from lab.bench.pages import write_page

BATCHES = (1, 8, 32, 64, 128, 256, 512)
NAME = "gpu-capacity"
USED_SHARE = 0.9
"""Of the memory that is free, for state: the rest is for activations and captured graphs."""


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration. ``who`` is "ours" or "upstream" (bfloat16, always its whole ring)."""

    who: str
    size: Size
    form: Form
    batch: int
    context: str

    @property
    def key(self) -> str:
        """Under which its result is kept."""
        kept = {True: "int8", False: str(self.form.dtype).removeprefix("torch.")}
        forms = f"weights {kept[self.form.int8_weights]}, kv {kept[self.form.int8_kv]}"
        return f"{self.who}: {self.size.name}, {forms}, batch {self.batch}, {self.context}"


def measure_ours(case: Case, modules: Callable[[], Any], ticks: int, device: torch.device) -> Values:
    """One configuration of ours: a backend of exactly so many rows."""
    mimi, generator = modules()
    spec = model_spec(case.size)
    backend = HostBackend(spec, TorchFrames(spec, mimi, generator), slots=case.batch)
    try:
        context, tick = case.size.lm["context"], our_tick(backend, case.batch)
        if device.type == "cuda":
            warm_up(backend, tick, case.batch, context)
        if case.context == "full":
            fill_context(backend, case.batch, context)
        times = time_ticks(tick, ticks, silent=max(case.size.lm["delays"]))
        return {"times": times, **memory(device)}
    finally:
        backend.close()


def measure_upstream(case: Case, ticks: int, device: torch.device) -> Values:
    """Upstream's own loop."""
    with upstream_tick(case.size, case.form, case.batch, device) as tick:
        times = time_ticks(tick, ticks, silent=max(case.size.lm["delays"]))
        return {"times": times, **memory(device)}


def batches_that_fit(size: Size, form: Form, wanted: list[int] | None, device: torch.device) -> list[int]:
    """The wanted batches that memory holds, or the usual ones and the largest there is."""
    if device.type != "cuda":
        return wanted or [1, 2]
    cost, (free, _) = reads(size, form), torch.cuda.mem_get_info(device)
    most = max(0, int(USED_SHARE * (free - cost.resident_bytes)) // cost.state_bytes)
    fitting = [batch for batch in wanted or BATCHES if batch <= most]
    for batch in wanted or ():
        if batch > most:
            tell(
                f"{size.name}, batch {batch}: left out, {most} rows of {cost.state_bytes:,} bytes fit beside "
                f"{cost.resident_bytes:,} bytes of weights into {free:,}"
            )
    return fitting if wanted else sorted({*fitting, most} - {0})


def cases(
    options: argparse.Namespace, sizes: list[Size], device: torch.device, drop: Callable[[], None]
) -> Iterator[Case]:
    """Every configuration, a model's form after the other, so that weights are made once each.

    ``drop`` frees the weights of the form before: what fits is asked of the memory without them.
    """
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for size in sizes:
        for weights in options.weights or ("compute", "int8"):
            for kv in options.kv or ("compute", "int8"):
                form = Form(weights == "int8", kv == "int8", dtype)
                drop()
                for batch in batches_that_fit(size, form, options.batch, device):
                    for context in options.context or ("empty", "full"):
                        yield Case("ours", size, form, batch, context)
        form = Form(int8_weights=False, int8_kv=False, dtype=dtype)
        if not options.no_upstream and not size.cross_positions:  # its tts wants conditions with every step
            drop()
            for batch in batches_that_fit(size, form, options.batch, device):
                yield Case("upstream", size, form, batch, "any")


def run_case(
    case: Case, modules: Callable[[], Any], options: argparse.Namespace, device: torch.device
) -> Values:
    """Measure one configuration beside its prediction; one that cannot be measured says why."""
    frames = case.size.lm["context"] if case.context != "empty" else options.ticks
    cost = reads(case.size, case.form)
    found: Values = {
        "who": case.who,
        "model": case.size.name,
        "int8_weights": case.form.int8_weights,
        "int8_kv": case.form.int8_kv,
        "batch": case.batch,
        "context": case.context,
        "reads": asdict(cost),
        "tick_bytes": cost.tick_bytes(case.batch, frames),
    }
    try:
        if case.who == "ours":
            return found | measure_ours(case, modules, options.ticks, device)
        return found | measure_upstream(case, options.ticks, device)
    except (torch.OutOfMemoryError, ImportError) as error:
        return found | {"error": str(error).splitlines()[0]}


class Modules:
    """The modules of the form measured last, made when they are first needed: two forms may not fit."""

    def __init__(self, device: torch.device, attention: str) -> None:
        self._device, self._attention = device, attention
        self._made: tuple[tuple[str, Form], Any] | None = None

    def get(self, size: Size, form: Form) -> Any:
        """Mimi and a generator."""
        if self._made is None or self._made[0] != (size.name, form):
            self.drop()
            self._made = ((size.name, form), make_modules(size, form, self._device, self._attention))
        return self._made[1]

    def drop(self) -> None:
        """Free them."""
        self._made = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def main(argv: list[str]) -> int:
    """The command line. Returns the exit status."""
    options = arguments(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_small = options.quick or device.type == "cpu"
    wanted = [published_sizes()[name] for name in options.model or published_sizes()]
    settings = {"ticks": options.ticks, "small": is_small, "attention": options.attention}
    with terminable(NAME):
        warn_if_busy()
        results = Results(options.out / f"{NAME}.json", settings=settings, resume=options.resume)
        values = results.values
        if device.type == "cpu":
            tell("no GPU here: nothing below was measured on one")
            torch.set_num_threads(1)
        values["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        values["copy_bytes_per_s"] = copy_bytes_per_s(device)
        values["assumed_bytes_per_s"] = 1e12 * options.bandwidth_tb_s
        values["predictions"] = list(predictions(wanted))
        modules = Modules(device, options.attention)
        for case in cases(
            options, [small_size(size) if is_small else size for size in wanted], device, modules.drop
        ):
            tell(case.key)
            with torch.no_grad():
                run = partial(run_case, case, partial(modules.get, case.size, case.form), options, device)
                results.attempt(case.key, run)
        results.save()
        write_page(options.out / f"{NAME}.md", render(values))
        plot(values, options.out / f"{NAME}.png")
    print(render(values))
    return 0


def predictions(sizes: list[Size]) -> Iterator[Values]:
    """What the published sizes have to read, whether there is a GPU or not."""
    for size in sizes:
        for int8_weights, int8_kv in ((False, False), (True, False), (True, True)):
            found = reads(size, Form(int8_weights, int8_kv, torch.bfloat16))
            for batch in (1, 64, 128):
                for context, frames in (("empty", 1), ("full", size.lm["context"])):
                    yield {
                        "model": size.name,
                        "int8_weights": int8_weights,
                        "int8_kv": int8_kv,
                        "batch": batch,
                        "context": context,
                        "tick_bytes": found.tick_bytes(batch, frames),
                        "memory_bytes": found.resident_bytes + batch * found.state_bytes,
                    }


def arguments(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = tuple(published_sizes())
    parser.add_argument("--model", choices=names, action="append", help="default: all")
    parser.add_argument("--weights", choices=("compute", "int8"), action="append", help="default: both")
    parser.add_argument("--kv", choices=("compute", "int8"), action="append", help="default: both")
    parser.add_argument("--batch", type=int, action="append", help="default: as many as fit")
    parser.add_argument("--context", choices=("empty", "full"), action="append", help="default: both")
    parser.add_argument("--attention", choices=("auto", "torch", "triton"), default="auto")
    parser.add_argument("--ticks", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--bandwidth-tb-s", type=float, default=4.3, help="for the arithmetic without a GPU")
    parser.add_argument("--no-upstream", action="store_true")
    parser.add_argument("--quick", action="store_true", help="shrunk models, 5 ticks")
    parser.add_argument("--resume", action="store_true", help="go on where an earlier run stopped")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="default: %(default)s")
    options = parser.parse_args(argv)
    if options.quick:
        options.ticks = 5
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
