"""Full-size Mimi and an stt-1b language model as ONNX graphs, float32, INT8 and INT4, beside upstream.

    python -m bench.onnx_models --threads 2             Mimi at batch 1 and 8, the LM step at 1, 4 and 8
    python -m bench.onnx_models --only lm --layers 4    less memory: exporting all 16 takes about 10 GB
    python -m bench.onnx_models --quick                 everything small, in seconds, to see that it works

Weights are random, rings are full. Upstream computes Mimi in float32 and the LM in bfloat16, as it comes,
with what it compiles compiled. Graphs are exported once, into OUT/graphs; delete them after a change. All
forms take turns; with one thread the thread's own CPU time is counted, with more the clock's.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.sessions import open_session, pick_provider
from antiphon.backends.torch.lm import LanguageModel
from antiphon.backends.torch.mimi import Mimi
from antiphon.models import defaults
from antiphon.models.graphs import graph_from_json, graph_to_json
from antiphon_quantize.onnx_export import export_stage
from antiphon_quantize.onnx_modules import DecodeStage, EncodeStage, LanguageStage, Stage
from antiphon_quantize.onnx_weights import quantize_graph
from antiphon_quantize.recipe import load_recipe
from bench.cpu_models import SMALL_LM, STT_1B, make_lm, make_mimi
from bench.harness import Results, Values, machine_line, tell, warn_if_busy
from bench.turns import UNTIMED_TURNS, clock_name, take_turns
from tools.small_models import mimi_config

RECIPES = ("float32", "int8", "int4")
CODEBOOKS = 8
LONG_AGO = 100_003
"""A position behind every ring's wrap."""

Calls: TypeAlias = dict[str, Callable[[], object]]


def seeded(model: nn.Module) -> nn.Module:
    """The model with weights that keep signals about as loud as they are."""
    torch.manual_seed(0)
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        if tensor.dim() > 1 and min(tensor.shape) > 1:
            tensor.normal_(0, tensor[0].numel() ** -0.5)
        else:
            tensor.fill_(1)
    return model


def stages(config: Mapping[str, Any]) -> Iterator[tuple[str, Stage]]:
    """The stages of a language model, or of a Mimi, by the configuration."""
    with torch.device("meta"):
        is_lm = "n_q" in config
        model = LanguageModel(config, steps=0) if is_lm else Mimi(config, CODEBOOKS)
    seeded(model)
    if isinstance(model, LanguageModel):
        yield "lm", LanguageStage(model.prepare())
    else:
        mimi = model.prepare()
        yield "encode", EncodeStage(mimi)
        yield "decode", DecodeStage(mimi, CODEBOOKS)


def export(config: Mapping[str, Any], folder: Path) -> None:
    """Every stage by every recipe into ``folder/RECIPE/STAGE.onnx``, unless the folder is there."""
    if folder.is_dir():
        return
    part = folder.with_name(folder.name + ".part")
    for recipe in RECIPES:
        (part / recipe).mkdir(parents=True, exist_ok=True)
    for name, stage in stages(config):
        tell(f"exporting {folder.name} {name}")
        source = part / RECIPES[0] / f"{name}.onnx"
        form = export_stage(stage, source, name)
        (part / f"{name}.json").write_text(json.dumps(graph_to_json(form)))
        for recipe in RECIPES[1:]:
            quantize_graph(source, part / recipe / source.name, load_recipe("onnx", recipe))
    part.rename(folder)
    gc.collect()


def open_graph(folder: Path, recipe: str, name: str, rows: int, threads: int) -> Graph:
    """A graph of ``rows`` rows, all of them far in their calls."""
    form = graph_from_json(json.loads((folder / f"{name}.json").read_text()), name)
    session = open_session(folder / recipe / f"{name}.onnx", pick_provider("cpu")[1], threads)
    graph = Graph(session, form, rows)
    graph.inputs["exec"][:] = True
    for state, array in graph.state.arrays.items():
        if state.endswith("position"):
            array[:] = LONG_AGO
        elif array.dtype == bool:
            array[:] = True
    return graph


def graph_calls(folder: Path, names: Sequence[str], rows: int, threads: int) -> Calls:
    """A frame of each stage by each recipe."""
    return {
        f"{recipe} {name}": partial(open_graph(folder, recipe, name, rows, threads).run, rows)
        for recipe in RECIPES
        for name in names
    }


def sizes(folder: Path, names: Sequence[str]) -> Values:
    """Megabytes of each graph with its weights."""
    return {
        f"{recipe} {name}": sum(p.stat().st_size for p in (folder / recipe).glob(f"{name}.onnx*")) / 1e6
        for recipe in RECIPES
        for name in names
    }


def measure_mimi(config: Mapping[str, Any] | None, folder: Path, rows: int, turns: int) -> Values:
    """Encode and decode one frame for ``rows`` rows."""
    names = ("encode", "decode")
    export(defaults.MIMI_CONFIG if config is None else config, folder)
    upstream, _ = make_mimi(CODEBOOKS, config)
    pcm = torch.randn(rows, 1, upstream.frame_size) * 0.1
    with upstream.streaming(rows):
        codes = upstream.encode(pcm)
        calls: Calls = {
            "upstream encode": lambda: upstream.encode(pcm),
            "upstream decode": lambda: upstream.decode(codes),
        }
        calls |= graph_calls(folder, names, rows, torch.get_num_threads())
        return {"times": take_turns(calls, turns), "megabytes": sizes(folder, names)}


def measure_lm(config: Mapping[str, Any], folder: Path, rows: int, turns: int) -> Values:
    """One step of the temporal transformer for ``rows`` rows."""
    export(config, folder)
    upstream = make_lm(config, torch.bfloat16)
    tokens = torch.randint(upstream.card, (rows, 1 + config["n_q"], 1))
    with upstream.streaming(rows):
        calls: Calls = {"upstream lm": lambda: upstream.forward_text(tokens)}
        calls |= graph_calls(folder, ("lm",), rows, torch.get_num_threads())
        return {"times": take_turns(calls, turns), "megabytes": sizes(folder, ("lm",))}


def render(values: Values) -> str:
    """The results in Markdown."""
    settings = values["settings"]
    about = (
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}. {settings['threads']} thread(s), "
        f"{settings['clock']}; {settings['turns']} turns after {UNTIMED_TURNS} that do not count."
    )
    head = (
        "Median in ms; how many times as fast as upstream.\n\n"
        "| | rows | upstream | float32 | INT8 | INT4 | MB of weights |\n|---|---|---|---|---|---|---|"
    )
    rows = [
        _row(what, key.split()[1], parts, found)
        for key, found in values["attempts"].items()
        for what, parts in _lines(key)
    ]
    return "\n\n".join(["# ONNX graphs beside upstream", about, "\n".join([head, *rows])]) + "\n"


def _lines(key: str) -> list[tuple[str, list[str]]]:
    if key.startswith("lm"):
        return [("stt-1b step", ["lm"])]
    parts = ["encode", "decode"]
    return [*((f"Mimi {part}", [part]) for part in parts), ("**Mimi encode + decode**", parts)]


def _row(what: str, rows: str, parts: list[str], found: Values) -> str:
    times = {
        who: sum(found["times"][f"{who} {part}"]["median_ms"] for part in parts)
        for who in ("upstream", *RECIPES)
    }
    cells = [f"{times[who]:.1f} ({times['upstream'] / times[who]:.2f}x)" for who in RECIPES]
    megabytes = [sum(found["megabytes"][f"{who} {part}"] for part in parts) for who in RECIPES]
    cells = [f"{times['upstream']:.1f}", *cells, ", ".join(f"{size:.0f}" for size in megabytes)]
    return f"| {what} | {rows} | {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parse(argv)
    torch.set_num_threads(options.threads)
    keys = ("threads", "turns", "layers", "quick")
    settings = {"clock": clock_name(), **{key: getattr(options, key) for key in keys}}
    results = Results(options.out / "onnx-models.json", settings=settings, resume=options.resume)
    warn_if_busy()
    graphs, quick = options.out / "graphs", options.quick
    mimi = mimi_config() if quick else None
    lm = SMALL_LM if quick else {**STT_1B, "num_layers": options.layers}
    size = "small" if quick else "full"
    with torch.no_grad():
        for rows in options.batch:
            if options.only in (None, "mimi"):
                run = partial(measure_mimi, mimi, graphs / f"mimi-{size}", rows, options.turns)
                results.attempt(f"mimi {rows}", run)
        for rows in options.batch:
            if options.only in (None, "lm"):
                folder = graphs / f"lm-{size}-{lm['num_layers']}"
                results.attempt(f"lm {rows}", partial(measure_lm, lm, folder, rows, options.turns))
    text = render(results.values)
    (options.out / "onnx-models.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.onnx_models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--only", choices=("mimi", "lm"), help="[both]")
    parser.add_argument("--batch", type=int, action="append", help="[1 and 8]")
    parser.add_argument("--threads", type=int, default=2, help="1 counts CPU time [%(default)s]")
    parser.add_argument("--turns", type=int, default=20, help="[%(default)s]")
    parser.add_argument("--layers", type=int, default=16, help="of the language model [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="everything, small, in seconds")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted run's results")
    options = parser.parse_args(argv)
    options.batch = options.batch or [1, 8]
    return options


if __name__ == "__main__":
    sys.exit(main())
