"""What an INT8 linear costs: torchao's, and ours in its three forms, beside bfloat16 and INT4, in one run.

    python -m lab.bench.int8_linear                   the linears of four stt-1b layers, at 1 to 16 rows
    python -m lab.bench.int8_linear --quick           small ones, in a second or two, to see that it works

A pass goes through all of the layers, which together are larger than a CPU's caches, as those of a model are.
With one thread (the default) the thread's own CPU time counts, which other programs hardly change.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from antiphon.backends.torch.modules.linear import Linear
from antiphon.backends.torch.quantised.int4 import Int4Linear
from antiphon.backends.torch.quantised.int8 import Int8Linear
from antiphon_quantize.recipe import load_recipe
from antiphon_quantize.torch_formats import format_of
from lab.bench.harness import Results, Values, machine_line, tell, warn_if_busy
from lab.bench.turns import take_turns

SHAPES = ((2048, 6144), (2048, 2048), (2048, 11264), (5632, 2048))
"""(in, out) of the linears of an stt-1b layer."""

SMALL_SHAPES = ((64, 192), (64, 64))
BASELINE = "bfloat16, packed"

Layer = Callable[[Tensor], Tensor]


def torchao_layer(weight: Tensor, *, dynamic: bool) -> nn.Linear:
    """The weight ``[out, in]`` as torchao rounds it, run eagerly."""
    logging.disable(logging.WARNING)  # importing torchao warns of kernels for other machines
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        quantize_,
    )

    logging.disable(logging.NOTSET)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    config = Int8DynamicActivationInt8WeightConfig if dynamic else Int8WeightOnlyConfig
    quantize_(layer, config(version=2))
    return layer


def our_layer(weight: Tensor, *, pack: bool, rounds_input: bool = True) -> Int8Linear:
    """The same weight in our linear."""
    layer = Int8Linear.from_torchao(torchao_layer(weight, dynamic=False).weight)
    layer.rounds_input = rounds_input
    if pack:
        layer.pack()
    return layer


def int4_layer(weight: Tensor) -> Int4Linear:
    """The same weight in INT4, a scale for each 32, as the recipe makes it but without its search."""
    recipe = replace(load_recipe("torch", "int4"), search=False)
    rounded = format_of(recipe).make_rounder(recipe)(weight)
    layer = Int4Linear(rounded.weight, rounded.scale)
    layer.pack()
    return layer


def plain_layer(weight: Tensor, *, pack: bool) -> Linear:
    """The weight as it is."""
    layer = Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    layer.weight = nn.Parameter(weight.clone(), requires_grad=False)
    if pack:
        layer.pack()
    return layer


FORMS: Mapping[str, Callable[[Tensor], Layer]] = {
    "bfloat16": partial(plain_layer, pack=False),
    BASELINE: partial(plain_layer, pack=True),
    "torchao weight-only, eager": partial(torchao_layer, dynamic=False),
    "torchao dynamic, eager": partial(torchao_layer, dynamic=True),
    "ours, weight only": partial(our_layer, pack=False, rounds_input=False),
    "ours on torch._int_mm": partial(our_layer, pack=False),
    "ours, packed": partial(our_layer, pack=True),
    "ours, INT4, packed": int4_layer,
}


def measure(shapes: Sequence[tuple[int, int]], layers: int, batches: Sequence[int], turns: int) -> Values:
    """Milliseconds of a pass, and the relative error of its outputs, by form and batch."""
    torch.manual_seed(0)
    weights = [
        torch.randn(out, width, dtype=torch.bfloat16) * width**-0.5
        for _ in range(layers)
        for width, out in shapes
    ]
    stacks = {name: [make(weight) for weight in weights] for name, make in FORMS.items()}
    found: Values = {}
    for batch in batches:
        inputs = {width: torch.randn(batch, width, dtype=torch.bfloat16) for width, _ in shapes}

        def go(stack: Sequence[Layer], inputs: Mapping[int, Tensor] = inputs) -> list[Tensor]:
            return [layer(inputs[weight.shape[1]]) for layer, weight in zip(stack, weights, strict=True)]

        want = [inputs[weight.shape[1]].float() @ weight.float().t() for weight in weights]
        times = take_turns({name: partial(go, stack) for name, stack in stacks.items()}, turns)
        for name, stack in stacks.items():
            errors = [
                float((got - true).norm() / true.norm()) for got, true in zip(go(stack), want, strict=True)
            ]
            times[name]["error"] = sum(errors) / len(errors)
        found[str(batch)] = times
        tell(f"{batch} rows: {times['ours, packed']['median_ms']:.2f} ms packed")
    return {"times": found}


def render(values: Values) -> str:
    """The results in Markdown: median (best), and times faster than the baseline."""
    settings, times = values["settings"], values["attempts"]["linears"]["times"]
    lines = [
        "# INT8 linears",
        "",
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; {settings['threads']} "
        f"thread(s), {settings['turns']} turns, median (best) in ms, then how many times as fast as "
        f"{BASELINE}; load average before the run {values['machine']['load_average_before'][0]}.",
        "",
        "| | error | " + " | ".join(f"{batch} rows" for batch in times) + " |",
        "|---|---|" + "---|" * len(times),
    ]
    for name in FORMS:
        cells = [
            f"{found[name]['median_ms']:.2f} ({found[name]['best_ms']:.2f}) "
            f"{found[BASELINE]['median_ms'] / found[name]['median_ms']:.2f}x"
            for found in times.values()
        ]
        error = max(found[name]["error"] for found in times.values())
        lines.append(f"| {name} | {error:.2%} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="lab.bench.int8_linear", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="small linears, few turns")
    parser.add_argument("--threads", type=int, default=1, help="1 counts CPU time [%(default)s]")
    parser.add_argument("--turns", type=int, help="[20]")
    parser.add_argument("--layers", type=int, help="[4]")
    options = parser.parse_args(argv)
    shapes, layers, turns = (SMALL_SHAPES, 1, 2) if options.quick else (SHAPES, 4, 20)
    layers, turns = options.layers or layers, options.turns or turns
    warn_if_busy()
    settings = {"threads": options.threads, "turns": turns, "layers": layers, "quick": options.quick}
    results = Results(options.out / "int8-linear.json", settings=settings, resume=False)
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        with torch.inference_mode():
            results.attempt("linears", partial(measure, shapes, layers, (1, 2, 4, 8, 16), turns))
    finally:
        torch.set_num_threads(before)
    text = render(results.values)
    (options.out / "int8-linear.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
