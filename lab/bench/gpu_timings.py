"""Steps of ``lab.bench.gpu_session`` that time whole ticks and their parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.state import PackedStep, State, runs_of
from antiphon.models.costs import CODEC_LAUNCHES, Launches, codec_cost
from lab.bench import gpu_chain
from lab.bench.gpu_card import Task, Values, card_here, device, make_backend, median_ms, note
from lab.bench.gpu_costs import NODES, stage_costs, tick_ms
from lab.bench.gpu_models import make_modules, reads
from lab.bench.gpu_ticks import WARM_UP_TICKS, fill_context, our_tick, time_ticks
from lab.bench.gpu_upstream import upstream_tick

TICKS, FEW_TICKS, EMPTY_TICKS = 300, 3, 40
"""Numbers of timed ticks; with empty rings few, as rings fill meanwhile."""
SILENT_TICKS = 2
CHAIN = 500
TOP_KERNELS = 28
PROFILED_TICKS = 3


def ticks(task: Task) -> Values:
    """Measure p50 and p99 of a tick and its stages, with empty, half full and full rings; also returns the
    bytes read and the prediction."""
    start_s, context = time.perf_counter(), task.size.lm["context"]
    backend = make_backend(task)
    found: Values = {
        "model": task.model,
        "batch": task.batch,
        "bits": task.bits,
        "made_s": time.perf_counter() - start_s,
    }
    cost, tick = reads(task.size, task.form), our_tick(backend, task.batch)
    card = card_here()
    found["computed_for"] = f"{card.name}, {card.label}"
    with torch.no_grad():
        fills = (("full", context), ("half", context // 2), ("empty", 1))
        for name, frames in fills[:1] if task.is_small else fills:
            count = FEW_TICKS if task.is_small else EMPTY_TICKS if name == "empty" else TICKS
            middle = min(context, middle_frames(frames, count))
            predicted = stage_costs(task.size, task.batch, middle, card, task.form)
            fill_context(backend, task.batch, frames)
            start_s = time.perf_counter()
            for _ in range(3):
                tick()
            warm_s = time.perf_counter() - start_s
            fill_context(backend, task.batch, frames)
            found[name] = {
                "warm_s": warm_s,
                "read_gb": cost.tick_bytes(task.batch, middle) / 1e9,
                "computed": {stage: asdict(one) | {"ms": one.ms} for stage, one in predicted.items()},
                "computed_ms": tick_ms(predicted, card),
                "ms": time_ticks(tick, count, silent=SILENT_TICKS),
            }
            note({name: found[name]})
    if device().type == "cuda":
        found["reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
    return found


def middle_frames(frames: int, ticks: int) -> int:
    """Return the number of frames that rows have received in the middle of ``ticks`` timed ticks."""
    return frames + WARM_UP_TICKS + SILENT_TICKS + ticks // 2


def profile(task: Task) -> Values:
    """Measure the time of a tick with full rings by kernel. It runs in a separate process: a profiler slows
    down later work."""
    backend = make_backend(task)
    card, tick, kinds = card_here(), our_tick(backend, task.batch), [torch.profiler.ProfilerActivity.CPU]
    if device().type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.no_grad():
        fill_context(backend, task.batch, task.size.lm["context"])
        for _ in range(PROFILED_TICKS):
            tick()
        with torch.profiler.profile(activities=kinds) as trace:
            for _ in range(PROFILED_TICKS):
                tick()
    table: dict[str, list[float]] = {}
    for event in trace.events() or []:
        if event.device_type.name == "CUDA":
            table.setdefault(event.name[:70], []).append(event.time_range.elapsed_us())
    top = sorted(table.items(), key=lambda item: -sum(item[1]))[:TOP_KERNELS]
    return {
        "batch": task.batch,
        "computed_kernels": sum(nodes.of(task.batch, 8) for nodes in _stage_nodes(task)),
        "computed_ms": tick_ms(stage_costs(task.size, task.batch, task.size.lm["context"], card), card),
        "kernels": sum(map(len, table.values())) // PROFILED_TICKS,
        "busy_ms": sum(map(sum, table.values())) / PROFILED_TICKS / 1000,
        "top": [[name, len(us) // PROFILED_TICKS, sum(us) / PROFILED_TICKS] for name, us in top],
    }


def _stage_nodes(task: Task) -> list[Launches]:
    return [nodes for (model, _), nodes in NODES.items() if model == task.model]


def nodes(task: Task) -> Values:
    """Measure the microseconds of one more kernel in a graph: torch's, Triton's, and with programmatic
    launch."""
    count = 3 if task.is_small else CHAIN
    x, found = torch.zeros(gpu_chain.WIDTH, device=device()), Values(computed=1e6 * card_here().node_s)

    launches: dict[str, Any] = {
        "torch": lambda: x.add_(1.0),
        "triton": partial(gpu_chain.add_one[(1,)], x, enable_fp_fusion=True),
    }
    if device().type == "cuda":
        early = gpu_chain.add_one_early[(1,)]
        launches["triton, pdl"] = partial(early, x, launch_pdl=True, enable_fp_fusion=True)
    for name, launch in launches.items():
        try:
            found[name] = 1000 * median_ms(partial(_chain, launch, count)) / count
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        note(found)
    return found


def _chain(launch: Callable[[], object], count: int) -> None:
    for _ in range(count):
        launch()


def codec_step(codec: Mimi, state: State) -> PackedStep:
    """Return a step over all rows in the form of a captured stage of the server, with kernels if there are
    any."""
    rows = torch.arange(state.rows, device=state.device)
    named = list(range(state.rows))
    return PackedStep(
        state.tensors,
        rows,
        runs_of(named, [None] * state.rows),
        small_rows=state.rows + 1,
        is_padded=True,
        is_fused=codec.is_fused(state.device),
    )


def mimi(task: Task) -> Values:
    """Time Mimi's encoder and decoder at several row counts, in captured graphs, in float32 and TF32."""
    found, convolutions = Values(), torch.backends.cudnn
    with torch.no_grad():
        codec, _ = make_modules(task.size, task.form, device())
        for rows in (1,) if task.is_small else (1, 64, 128):
            state = State(codec.specs(), rows, device())
            pcm = 0.1 * torch.randn(rows, 1920, device=device())
            codes = torch.zeros(rows, task.size.codebooks, 1, dtype=torch.int64, device=device())
            step = codec_step(codec, state)
            for precision in ("ieee", "tf32"):
                convolutions.conv.fp32_precision = precision  # type: ignore[attr-defined]
                for name, run in (
                    ("encode", lambda pcm=pcm, step=step: codec.encode(pcm, step)),
                    ("decode", lambda codes=codes, step=step: codec.decode(codes, step)),
                ):
                    found[f"{name}, {rows} rows, {precision}"] = median_ms(run, 0.1)
            found[f"computed, {rows} rows, ieee"] = codec_cost(rows, card_here(), CODEC_LAUNCHES).ms
            note(found)
    return found


def upstream(task: Task) -> Values:
    """Time ticks of upstream's own loop in the same run, if its package is available."""
    try:
        made = upstream_tick(task.size, task.form, task.batch, device())
    except ImportError as error:
        return {"left_out": str(error)}
    with torch.no_grad(), made as tick:
        count = FEW_TICKS if task.is_small else 100
        return {"batch": task.batch, **time_ticks(tick, count, silent=max(task.size.lm["delays"]))}
