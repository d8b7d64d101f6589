"""What a language model loses when parts of it are left out: layers by measured sensitivity, 2 of 4 weights.

    python -m lab.bench.cut_models --model tiny --out docs/benchmarks/cut-models
    python -m lab.bench.cut_models --model ./half-trained --questions 24 --out out/bench/cut-models    quicker

Every layer of both transformers is left out in turn; then the one whose absence the gate (docs/gate.md) sees
least, and the two. Then 2 of each 4 neighbouring weights of their matrices become zero, the smaller ones
(Mishra et al. 2021), or those that matter less beside what they are multiplied with (Wanda: Sun et al. 2023;
rows are recorded as for AWQ). Nothing is trained afterwards. All of it in float32 on torch, which has no
product for such zeros on a CPU: their speed is that of a full matrix. A row is saved when it is done.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from antiphon.backends.torch.weights.lm_weights import renamed
from antiphon.models.architecture import stored_sets
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import sha256
from antiphon_quantize.calibration import RowFiles, load_recordings, record_rows
from antiphon_quantize.gate import judge
from antiphon_quantize.gate_limits import common_limits
from antiphon_quantize.gate_report import to_json
from antiphon_quantize.gate_run import Material, Side
from antiphon_quantize.gate_sound import built_in_clips
from lab.bench.harness import BenchError, Results, Values, machine_line, tell, terminable, warn_if_busy
from lab.bench.pages import write_page
from lab.bench.recipes import held_out, run
from lab.bench.recipes_report import measures_of, quality_table, stream_table, table

Tensors = dict[str, Tensor]
Change = Callable[[Tensors], Mapping[str, Any]]
"""Changes a published model's tensors, and says what becomes of its arguments."""

STACKS: Final = {"transformer": "num_layers", "depformer": "depformer_num_layers"}
"""By the tensors' prefix, the argument that counts the layers."""
FOUR: Final = 4
CUT: Final = "cut"
ROWS: Final = "rows"
"""Folders of --work, removed after each row."""
Layer = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """A model, and what it is judged by."""

    source: Checkpoint
    work: Path
    material: Material


def layers_of(source: Checkpoint) -> list[Layer]:
    """Every layer of both transformers.

    Raises:
        BenchError: a model without a language model.
    """
    if source.spec.lm is None:
        raise BenchError(f"{source.spec.name} has no language model")
    config = source.spec.lm.config
    return [(stack, layer) for stack, count in STACKS.items() for layer in range(config.get(count, 0))]


def without_layers(layers: Collection[Layer], tensors: Tensors, config: Mapping[str, Any]) -> dict[str, Any]:
    """Take layers out of a published model's tensors; those behind them close up. The new counts."""
    for stack, layer in sorted(layers, reverse=True):
        pattern = re.compile(rf"^{stack}\.layers\.(\d+)\.(.*)$")
        kept: Tensors = {}
        for name, tensor in tensors.items():
            found = pattern.match(name)
            if found is None or int(found[1]) < layer:
                kept[name] = tensor
            elif int(found[1]) > layer:
                kept[f"{stack}.layers.{int(found[1]) - 1}.{found[2]}"] = tensor
        tensors.clear()
        tensors.update(kept)
    counts = {name: config[name] for name in STACKS.values() if name in config}
    for stack, _ in layers:
        counts[STACKS[stack]] -= 1
    return counts


def two_of_four(weight: Tensor, loudness: Tensor | None = None) -> Tensor:
    """``[out, in]`` with the 2 smallest of each 4 neighbours in a row zero, each times ``loudness [in]``."""
    size = weight.float().abs()
    if loudness is not None:
        size = size * loudness
    least = size.reshape(-1, FOUR).topk(FOUR // 2, largest=False).indices
    cut: Tensor = weight.reshape(-1, FOUR).scatter(1, least, 0).reshape(weight.shape)
    return cut


def is_matrix(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is a matrix of one of the transformers' layers, with whole groups of four."""
    in_layer = re.match(r"^(transformer|depformer)\.layers\.", name) is not None
    return in_layer and tensor.dim() == 2 and tensor.shape[1] % FOUR == 0


def sparse(plan: Plan, tensors: Tensors, *, listens: bool) -> dict[str, Any]:
    """Make 2 of 4 weights of every layer's matrices zero; ``listens`` weighs them by what they meet."""
    assert plan.source.spec.lm is not None
    sets = stored_sets(plan.source.spec.lm.config)
    chosen = [name for name, tensor in tensors.items() if is_matrix(name, tensor)]
    parts = {name: list(renamed(name, tensors[name], sets)) for name in chosen}
    rows = recorded(
        plan, [part.removesuffix(".weight") for found in parts.values() for part, _ in found], listens
    )
    for name, found in parts.items():
        cut = []
        for part, weight in found:
            met = None if rows is None else rows.read(part.removesuffix(".weight"), weight.shape[1])
            cut.append(two_of_four(weight, None if met is None else met.square().mean(dim=0).sqrt()))
        tensors[name] = torch.cat(cut).reshape(tensors[name].shape)
    return {}


def recorded(plan: Plan, linears: Collection[str], listens: bool) -> RowFiles | None:
    """What linears are multiplied with while the model hears the built-in clips."""
    if not listens:
        return None
    files = RowFiles(plan.work / ROWS, torch.float32)
    shutil.rmtree(files.folder, ignore_errors=True)
    files.folder.mkdir(parents=True)
    sound = load_recordings(built_in_clips(), plan.source.spec.mimi.sample_rate)
    record_rows(plan.source, sound, linears, files, lambda *_: None)
    return files


def changed(plan: Plan, change: Change) -> Checkpoint:
    """A copy of the model, its published files alone, with a change made to its language model.

    Raises:
        BenchError: a model without a ``config.json``.
    """
    source, folder = plan.source, plan.work / CUT
    if "config" not in source.files:
        raise BenchError(f"{source.spec.name} has no config.json, and cannot be cut")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = json.loads(source.file("config").read_text(encoding="utf-8"))
    tensors = load_file(source.file("lm"))
    config |= change(tensors)
    for role in ("mimi", "tokenizer", "mimi_config"):
        if role in source.files:
            shutil.copyfile(source.files[role], folder / source.files[role].name)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / source.file("lm").name
    )
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return load_checkpoint(str(folder))


def judged(plan: Plan, change: Change) -> Values:
    """The gate's verdict on a changed model."""
    try:
        candidate = changed(plan, change)
        whole, cut = (Side(one, "torch", {"dtype": "float32"}) for one in (plan.source, candidate))
        return {"gate": to_json(judge(whole, cut, common_limits(), plan.material, tell))}
    finally:
        for name in (CUT, ROWS):
            shutil.rmtree(plan.work / name, ignore_errors=True)


def dropped(plan: Plan, layers: Sequence[Layer]) -> Values:
    """The verdict on a model without some layers."""
    lm = plan.source.spec.lm
    assert lm is not None
    return judged(plan, lambda tensors: without_layers(layers, tensors, lm.config))


def missed(found: Values) -> float:
    """How much a part is missed: the mean divergence of all streams."""
    rows = [row["value"] for name, row in measures_of(found).items() if name.endswith(" kl")]
    numbers = [value if isinstance(value, float | int) else float("inf") for value in rows]
    return sum(numbers) / len(numbers)


def least_missed(names: Mapping[str, Layer], results: Results, count: int) -> list[Layer]:
    """The layers that were missed least, one at a time."""
    attempts = results.values["attempts"]
    known = [name for name in names if "gate" in attempts.get(name, {})]
    return [names[name] for name in sorted(known, key=lambda name: missed(attempts[name]))[:count]]


def run_all(plan: Plan, results: Results) -> None:
    """Every layer alone, then the two that were missed least together, then zeros."""
    names = {f"without {stack}'s layer {layer}": (stack, layer) for stack, layer in layers_of(plan.source)}
    run({name: partial(dropped, plan, [layer]) for name, layer in names.items()}, results, time.monotonic)
    pair = least_missed(names, results, 2)
    told = " and ".join(f"{stack}'s {layer}" for stack, layer in pair)
    last = {
        f"without the two missed least: {told}": partial(dropped, plan, pair),
        "2 of 4 weights zero, the smaller": partial(judged, plan, partial(sparse, plan, listens=False)),
        "2 of 4 weights zero, by what they meet": partial(judged, plan, partial(sparse, plan, listens=True)),
    }
    run(last, results, time.monotonic)


def render(values: Values) -> str:
    """The results in Markdown."""
    rows = {name: found for name, found in values["attempts"].items() if "gate" in found}
    found = {name: measures_of(one) for name, one in rows.items()}
    costs = table(
        ("cut", "mean divergence", "size", "a frame, times as fast"),
        (
            [
                name,
                f"{missed(rows[name]):.4f}",
                f"{one['size ratio']['value']:.0%}",
                f"{1 / one['speed ratio']['value']:.2f}",
            ]
            for name, one in found.items()
        ),
    )
    failed = [f"- {name}: {one['why']}" for name, one in values["attempts"].items() if "why" in one]
    material = next((one["gate"]["material"] for one in rows.values()), "")
    parts = [
        f"# {values['settings']['model']}, cut",
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}.",
        f"Held to the whole model, in float32 on torch; weights sha256 {values['settings']['sha256'][:12]}; "
        f"{material}. Nothing was trained after a cut. Arguments differ where layers do.",
        "\n".join(costs),
    ]
    if found:
        parts += ["\n".join(quality_table(rows, found)), "\n".join(stream_table(found))]
    return "\n\n".join([*parts, *failed]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Raises BenchError when the questions to be asked are not there."""
    parser = argparse.ArgumentParser(
        prog="lab.bench.cut_models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="a built-in name or a folder")
    add("--out", type=Path, default=Path("out/bench/cut-models"), help="with .json and .md [%(default)s]")
    add("--work", type=Path, default=Path("out/bench/cut-model"), help="where models lie [%(default)s]")
    add("--questions", type=int, default=200, help="spoken questions asked, 0 for none [%(default)s]")
    add("--questions-from", type=Path, default=Path("out/train/segments-test"), help="[%(default)s]")
    add("--frames", type=int, default=100, help="of each recording [%(default)s]")
    options = parser.parse_args(argv)
    warn_if_busy()
    source = load_checkpoint(options.model)
    material = Material(
        frames=options.frames,
        questions=held_out(options.questions_from, options.questions),
        most_questions=options.questions,
        rows=32,
        turns=20,
    )
    settings = {
        "model": source.spec.name,
        "sha256": sha256(source.file("lm")),
        "questions": options.questions,
        "frames": options.frames,
    }
    results = Results(options.out.with_suffix(".json"), settings=settings, resume=True)
    try:
        run_all(Plan(source, options.work, material), results)
    except BenchError as error:
        tell(f"lab.bench.cut_models: {error}")
        return 1
    results.save()
    print(write_page(options.out.with_suffix(".md"), render(results.values)), end="")
    return 0


if __name__ == "__main__":
    with terminable("cut_models"):
        sys.exit(main())
