"""What quantising a model of Moshi 7B's size takes on a CPU: peak memory and time; and the result, loaded.

    python -m lab.bench.quantize_7b out/7b                15 GB of seeded weights, then INT8: 24 GB of disk
    python -m lab.bench.quantize_7b out/7b --recipe int4  the model is there already
    python -m lab.bench.quantize_7b out/tenth --layers 3 --depformer-layers 1  a tenth of it
    python -m lab.bench.quantize_7b out/quick --quick     a small one, to see that it works

The model is written tensor by tensor. Quantising and loading are processes of their own: their peak is what
the system says of them when they end, pages of the files they read included.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from moshi.models import loaders
from safetensors.torch import save_file

from antiphon.backends.base import StepInputs
from antiphon.backends.registry import make_backend
from antiphon.models import defaults
from antiphon.models.catalog import load_checkpoint
from antiphon.models.weights import TensorInfo
from antiphon_quantize.tensor_file import tensor_bytes, writing_tensors
from antiphon_quantize.torch_target import put
from lab.bench.gpu_models import SHRUNK
from lab.bench.harness import BenchError, Results, Values, machine_line, tell, terminable, warn_if_busy
from lab.bench.seeded_models import upstream_mimi
from tests.support.launch import ANTIPHON
from tests.support.make_checkpoint import train_tokenizer
from tests.support.small_models import mimi_config, published_names

FILES: Mapping[str, str] = {
    "moshi_name": "model.safetensors",
    "mimi_name": "mimi.safetensors",
    "tokenizer_name": "tokenizer.model",
}

PIECES = 256
"""Of the text tokenizer: nobody reads what the model says."""

FRAMES = 5
"""Frames the loaded model steps; the first is a frame of warming up."""


STARTER = """
import json, resource, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: None)
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss * 1024,
                  "said": done.stdout.strip()}))
sys.exit(done.returncode)
"""
"""Runs a command and says what it took. It outlasts a SIGTERM, which ends the command."""


def shapes_of(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a published language model of this configuration."""
    model = loaders.get_moshi_lm(None, dict(config), device="meta", dtype=torch.bfloat16)
    return {name: tuple(tensor.shape) for name, tensor in published_names(model.state_dict()).items()}


def write_model(folder: Path, config: Mapping[str, Any], mimi: Mapping[str, Any] | None = None) -> int:
    """Write a model with seeded weights, one tensor in memory at a time. Returns the bytes of its weights.

    ``mimi`` None is the full-size one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan = {name: TensorInfo("BF16", shape) for name, shape in shapes_of(config).items()}
    part = folder / f"{FILES['moshi_name']}.part"
    with writing_tensors(part, plan) as file:
        for done, (name, tensor) in enumerate(_seeded(plan)):
            put(file, name, tensor)
            if done % 50 == 0:
                tell(f"{done}/{len(plan)} {name}")
    codebooks = max(config["dep_q"], config["n_q"] - config["dep_q"])
    save_file(upstream_mimi(codebooks, mimi).state_dict(), folder / FILES["mimi_name"])
    (folder / FILES["tokenizer_name"]).write_bytes(train_tokenizer(PIECES))
    published = {"model_type": "moshi", **config, **FILES}
    if mimi is not None:
        published["mimi_config_name"] = "mimi_config.json"
        (folder / published["mimi_config_name"]).write_text(json.dumps(mimi, indent=2))
    (folder / "config.json").write_text(json.dumps(published, indent=2))
    part.rename(folder / FILES["moshi_name"])
    return sum(map(tensor_bytes, plan.values()))


def _seeded(plan: Mapping[str, TensorInfo]) -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for name, info in plan.items():
        if len(info.shape) != 2:
            yield name, torch.ones(info.shape, dtype=torch.bfloat16)
            continue
        tensor = torch.empty(info.shape, dtype=torch.bfloat16)
        yield name, tensor.normal_(0, info.shape[-1] ** -0.5, generator=generator)


def measured(command: Sequence[str], log: Path | None = None) -> Values:
    """Run a command: its seconds, its peak memory, and what it printed; its errors go to ``log``, or here.

    It is started by a process of its own, since a peak counts from the fork, which is as large as who forks.
    When this one is interrupted, both are terminated.

    Raises:
        BenchError: it failed.
    """
    began = time.monotonic()
    line = [sys.executable, "-c", STARTER, *command]
    with nullcontext() if log is None else log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0)
        try:
            said, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()  # until the command has cleaned up
            raise
    if process.returncode:
        raise BenchError(f"{' '.join(command)} ended with {process.returncode}")
    found: Values = json.loads(said)
    return {"seconds": time.monotonic() - began, **found}


def step_model(folder: Path) -> Values:
    """Load a model into the torch backend, and step it; in milliseconds."""
    began = time.monotonic()
    checkpoint = load_checkpoint(str(folder))
    backend = make_backend("torch", checkpoint, slots=1, device="cpu", options={"dtype": "bfloat16"})
    loaded = time.monotonic()
    row, times = np.zeros(1, np.int32), []
    for frame in range(FRAMES):
        before = time.monotonic()
        out = backend.step(StepInputs(row, np.array([frame == 0]), np.zeros((1, 1920), np.float32)))
        times.append(1000 * (time.monotonic() - before))
        if out.pcm is None or not np.isfinite(out.pcm).all():
            raise BenchError(f"frame {frame} is no sound")
    return {
        "load_s": loaded - began,
        "step_ms": float(np.median(times[1:])),
        "runs": backend.info.quantization,
        "weights_bytes": backend.info.memory["weights"],
        "state_bytes": backend.info.memory["state_per_row"],
    }


def report(values: Values) -> str:
    """The results in Markdown."""
    lines = [
        f"`{values['command']}`, {values['started_at']}",
        "",
        machine_line(values),
        "",
        f"{values['attempts']['model']['bytes'] / 1e9:.2f} GB of bfloat16 weights.",
        "",
        "| recipe | file, GB | quantising, s | of CPU, s | peak, GB | loading, s | a frame, ms | peak, GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, tried in values["attempts"].items():
        if name != "model":
            made, loaded, ran = tried["quantize"], tried["load"], tried["step"]
            lines.append(
                f"| {name} | {tried['bytes'] / 1e9:.2f} | {made['seconds']:.0f} | {made['cpu_s']:.0f} "
                f"| {made['peak_bytes'] / 1e9:.2f} | {ran['load_s']:.0f} | {ran['step_ms']:.0f} "
                f"| {loaded['peak_bytes'] / 1e9:.2f} |"
            )
    return "\n".join(lines) + "\n"


def measure(folder: Path, recipe: str) -> Values:
    """Quantise the model, then load and step the result."""
    source, out = folder / "source", folder / recipe
    command = [*ANTIPHON, "quantize", "--no-gate", "--recipe", recipe, "--model", str(source), str(out)]
    made = measured([*command, *(["--force"] if out.exists() else [])])
    tell(made["said"])
    loaded = measured([sys.executable, "-m", "lab.bench.quantize_7b", "--step", str(out)])
    size = (out / FILES["moshi_name"]).stat().st_size
    return {"quantize": made, "load": loaded, "step": json.loads(loaded["said"]), "bytes": size}


def main(argv: Sequence[str]) -> int:
    """The command line. Returns the exit status."""
    options = _parse(argv)
    if options.step:
        print(json.dumps(step_model(options.folder)))
        return 0
    warn_if_busy()
    config, mimi = {**defaults.MOSHI_CONFIG}, None
    if options.quick:
        config |= SHRUNK
        mimi = mimi_config(card=config["card"])
    else:
        config |= {"num_layers": options.layers, "depformer_num_layers": options.depformer_layers}
    results = Results(options.folder / "results.json", settings=config, resume=True)
    source = options.folder / "source"
    results.attempt("model", lambda: {"bytes": write_model(source, config, mimi)})
    results.attempt(options.recipe, lambda: measure(options.folder, options.recipe))
    text = report(results.values)
    (options.folder / "report.md").write_text(text)
    print(text)
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the models and the results go")
    parser.add_argument("--recipe", default="int8", help="default: %(default)s")
    parser.add_argument("--layers", type=int, default=defaults.MOSHI_CONFIG["num_layers"])
    parser.add_argument("--depformer-layers", type=int, default=defaults.MOSHI_CONFIG["depformer_num_layers"])
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--step", action="store_true", help="load the model in FOLDER and step it, no more")
    return parser.parse_args(list(argv))


if __name__ == "__main__":
    with terminable("quantize_7b"):
        sys.exit(main(sys.argv[1:]))
