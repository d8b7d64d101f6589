"""Mimi and an stt-1b language model on CPU: upstream's modules and ours, by turns, in one run.

    python -m bench.cpu_models                      # Mimi and the LM, at batch 1, 4 and 8
    python -m bench.cpu_models --only mimi --batch 1
    python -m bench.cpu_models --only hour          # 60 minutes of one call, as fast as it goes

Weights are random and the same on both sides; sizes are the published ones. The two take turns, so that
whatever else the machine does meets both. The median and the best of the turns are given. On a busy
machine two threads wait for each other and say nothing about the code: there, use --threads 1, which
counts the thread's own CPU time instead of the clock's.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from moshi.models import loaders
from moshi.models.compression import MimiModel
from moshi.models.lm import LMModel
from moshi.utils.compile import no_compile

from antiphon.backends.base import StepInputs
from antiphon.backends.torch.backend import make
from antiphon.backends.torch.lm import LanguageModel
from antiphon.backends.torch.lm_weights import lm_tensors
from antiphon.backends.torch.loading import attention_dtype
from antiphon.backends.torch.mimi import Mimi
from antiphon.backends.torch.state import State
from antiphon.backends.torch.weights import assign, mimi_tensors
from antiphon.models import defaults
from antiphon.models.catalog import load_checkpoint
from bench.harness import Results, Values, machine_line, tell

STT_1B: Mapping[str, Any] = {
    "dim": 2048, "num_layers": 16, "num_heads": 16, "context": 750, "n_q": 32, "dep_q": 0, "card": 2048,
    "text_card": 8000, "hidden_scale": 4.125, "gating": "silu", "norm": "rms_norm_f32", "causal": True,
    "positional_embedding": "rope", "max_period": 100000.0, "layer_scale": None, "delays": [0] * 33,
    "existing_text_padding_id": 3, "extra_heads_num_heads": 4, "extra_heads_dim": 6,
}  # fmt: skip
FRAMES_PER_MINUTE = 750
KINDS = ("median_ms", "best_ms")

Call = Callable[[], object]


def take_turns(calls: Mapping[str, Call], turns: int) -> Values:
    """Time several calls by turns: milliseconds, median and best, by name.

    With one thread its own CPU time counts, which other programs on the machine hardly change.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 2):
        for name, call in calls.items():
            start_s = clock()
            call()
            if turn >= 2:  # the first turns page in and allocate
                times[name].append(1000 * (clock() - start_s))
    return {
        name: {"median_ms": statistics.median(found), "best_ms": min(found)} for name, found in times.items()
    }


def make_mimi(codebooks: int) -> tuple[MimiModel, Mimi]:
    """A full-size Mimi twice, with the same seeded weights."""
    torch.manual_seed(0)
    upstream = loaders.get_mimi(None, num_codebooks=codebooks)
    for name, buffer in upstream.named_buffers():
        if name.endswith("embedding_sum"):
            buffer.normal_()
        elif name.endswith("_initialized"):
            buffer.fill_(1)
    with torch.device("meta"):
        ours = Mimi(defaults.MIMI_CONFIG, codebooks)
    published = {name: tensor.clone() for name, tensor in upstream.state_dict().items()}
    tensors = mimi_tensors(published, codebooks)
    assign(ours, tensors, Path("seeded"))
    return upstream, ours.prepare(pack=True)


def measure_mimi(batch: int, turns: int, codebooks: int) -> Values:
    """Encode and decode one frame for ``batch`` rows, rings full."""
    upstream, ours = make_mimi(codebooks)
    pcm = torch.randn(batch, ours.frame_samples) * 0.1
    state = State(ours.specs(), batch)
    with upstream.streaming(batch):
        codes = upstream.encode(pcm[:, None])
        same = ours.encode(pcm, state.step(batch)) == codes
        times = take_turns(
            {
                "upstream encode": lambda: upstream.encode(pcm[:, None]),
                "ours encode": lambda: ours.encode(pcm, state.step(batch)),
                "upstream decode": lambda: upstream.decode(codes),
                "ours decode": lambda: ours.decode(codes, state.step(batch)),
            },
            turns,
        )
    return {"times": times, "codes_equal": float(same.float().mean())}


def make_lm(dtype: torch.dtype) -> LMModel:
    """An upstream language model of stt-1b's size with seeded weights."""
    torch.manual_seed(0)
    model = loaders.get_moshi_lm(None, copy.deepcopy(dict(STT_1B)), device="meta", dtype=dtype)
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        if tensor.dim() == 3:
            tensor.fill_(1)
        else:
            tensor.normal_(0, tensor.shape[-1] ** -0.5)
    return model.eval()


def adopt_lm(upstream: LMModel, *, int8: bool) -> LanguageModel:
    """Our model with the same weights."""
    with torch.device("meta"):
        kv_dtype = attention_dtype(torch.device("cpu"))
        ours = LanguageModel(STT_1B, steps=0, dtype=upstream.dtype, kv_dtype=kv_dtype)
    tensors = {name: tensor.clone() for name, tensor in lm_tensors(upstream.state_dict(), ours).items()}
    assign(ours, tensors, Path("seeded"))
    return ours.prepare(pack=True, int8=int8)


def lm_calls(upstream: LMModel, forms: Mapping[str, LanguageModel], batch: int) -> Iterator[tuple[str, Call]]:
    """One step of each, on a ring that is full."""
    tokens = torch.randint(STT_1B["card"], (batch, 33, 1))
    yield "upstream", lambda: upstream.forward_text(tokens)
    for name, model in forms.items():
        state = State(model.specs(), batch)
        state.tensors["lm.position"].fill_(STT_1B["context"])

        def call(model: LanguageModel = model, state: State = state) -> object:
            return model(tokens, state.step(batch))

        yield name, call


def measure_lm(dtype: torch.dtype, batches: list[int], turns: int) -> Values:
    """The temporal transformer's step in one dtype, INT8 weights beside bf16."""
    upstream = make_lm(dtype)
    forms = {"ours": adopt_lm(upstream, int8=False)}
    if dtype == torch.bfloat16:
        forms["ours int8"] = adopt_lm(upstream, int8=True)
    found = {}
    for batch in batches:
        with no_compile(), upstream.streaming(batch):
            found[str(batch)] = take_turns(dict(lm_calls(upstream, forms, batch)), turns)
    return {"times": found}


def measure_hour(minutes: int, model: str) -> Values:
    """Many minutes of one call: milliseconds a frame (best tenth) and memory, minute by minute."""
    backend = make(load_checkpoint(model), slots=1, device="cpu")
    random, process = np.random.default_rng(0), psutil.Process()
    pcm = random.normal(0, 0.1, (64, 1, backend.info.spec.frame_samples)).astype(np.float32)
    yes, no = np.array([True]), np.array([False])
    step_ms, rss_bytes = [], []
    for minute in range(minutes):
        times = []
        for frame in range(FRAMES_PER_MINUTE):
            start_s = time.perf_counter()
            backend.step(StepInputs(yes, yes if minute == frame == 0 else no, pcm[frame % len(pcm)]))
            times.append(1000 * (time.perf_counter() - start_s))
        step_ms.append(float(np.quantile(times, 0.1)))
        rss_bytes.append(process.memory_info().rss)
        tell(f"minute {minute + 1}: {step_ms[-1]:.2f} ms a frame, {rss_bytes[-1] / 2**20:.0f} MiB")
    return {"model": model, "step_ms": step_ms, "rss_bytes": rss_bytes}


def render(values: Values) -> str:
    """The results in Markdown."""
    lines = ["# Models on CPU", f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; "]
    lines[-1] += f"load average before the run {values['machine']['load_average_before'][0]}."
    head = "| | batch | upstream ms (best) | ours ms (best) | times faster (best) |\n|---|---|---|---|---|"
    rows = [row for key, found in values["attempts"].items() for row in _rows(key, found)]
    if rows:
        lines += ["\n".join([head, *rows])]
    if hour := values["attempts"].get("hour"):
        lines += [_hour_line(hour)]
    return "\n\n".join(lines) + "\n"


def _hour_line(hour: Values) -> str:
    step_ms, rss_bytes = hour["step_ms"], hour["rss_bytes"]
    early = min(4, len(step_ms) - 1)
    late = max(len(step_ms) - 2, early)
    return (
        f"One call of {len(step_ms)} minutes ({hour['model']}): {step_ms[early]:.2f} ms a frame in minute "
        f"{early + 1}, {step_ms[late]:.2f} ms in minute {late + 1}; memory between them "
        f"{(rss_bytes[late] - rss_bytes[early]) / 2**20:+.1f} MiB."
    )


def _rows(key: str, found: Values) -> Iterator[str]:
    if key.startswith("mimi"):
        times = found["times"]
        for what in ("encode", "decode"):
            yield _row(f"Mimi {what}", key.split()[1], times[f"upstream {what}"], times[f"ours {what}"])
        both = [
            {kind: times[f"{who} encode"][kind] + times[f"{who} decode"][kind] for kind in KINDS}
            for who in ("upstream", "ours")
        ]
        yield _row("**Mimi encode + decode**", key.split()[1], *both)
    elif key.startswith("lm"):
        for batch, times in found["times"].items():
            for name in [name for name in times if name != "upstream"]:
                yield _row(f"stt-1b step, {key.split()[1]}, {name}", batch, times["upstream"], times[name])


def _row(what: str, batch: str, upstream: Values, ours: Values) -> str:
    cells = [f"{who['median_ms']:.1f} ({who['best_ms']:.1f})" for who in (upstream, ours)]
    faster = [upstream[kind] / ours[kind] for kind in KINDS]
    return f"| {what} | {batch} | {cells[0]} | {cells[1]} | {faster[0]:.2f} ({faster[1]:.2f}) |"


def main(argv: list[str]) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", choices=("mimi", "lm", "hour"), action="append", help="default: mimi and lm"
    )
    parser.add_argument("--batch", type=int, action="append", help="default: 1, 4 and 8")
    parser.add_argument("--threads", type=int, default=2, help="1 counts CPU time, default: %(default)s")
    parser.add_argument("--turns", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--codebooks", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--minutes", type=int, default=60, help="of the call, default: %(default)s")
    parser.add_argument("--model", default="echo", help="of the call, default: %(default)s")
    parser.add_argument("--json", type=Path, default=Path(tempfile.gettempdir()) / "cpu-models.json")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    settings = {"threads": options.threads, "turns": options.turns}
    results = Results(options.json, settings=settings, resume=False)
    for key, run in _parts(options):
        tell(key)
        results.attempt(key, run)
        gc.collect()
    print(render(results.values))
    return 0


def _parts(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Values]]]:
    only, batches = options.only or ["mimi", "lm"], options.batch or [1, 4, 8]
    if "mimi" in only:
        for batch in batches:
            yield f"mimi {batch}", partial(measure_mimi, batch, options.turns, options.codebooks)
    if "lm" in only:
        yield "lm bf16", partial(measure_lm, torch.bfloat16, batches, options.turns)
        yield "lm float32", partial(measure_lm, torch.float32, batches, options.turns)
    if "hour" in only:
        yield "hour", partial(measure_hour, options.minutes, options.model)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
