"""Steps of ``lab.bench.gpu_session`` that check the GPU's results against a CPU's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module, metadata

import torch
from torch import Tensor

from antiphon.backends.torch.kernels.rows import linear_rows, plain_rows
from antiphon.backends.torch.kernels.steps import decode_attention
from antiphon.backends.torch.modules.attention import KVRing
from antiphon.backends.torch.modules.kv_forms import KVForm, quantize_tokens
from antiphon.backends.torch.quantised import Int8Linear
from antiphon.backends.torch.state import State
from lab.bench.gpu_card import (
    Task,
    Values,
    card_here,
    device,
    make_backend,
    median_ms,
    note,
    relative_error,
)
from lab.bench.gpu_ticks import our_tick

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "safetensors",
    "prometheus-client",
    "msgspec",
    "aiohttp",
    "av",
    "moshi",
    "torchao",
)
COMPILED_BATCHES = (1, 2, 4, 8, 16, 24, 32, 64, 128)
"""Row buckets of 128 rows whose kernels differ: 48 rows run by those of 64, 96 by those of 128."""
SANITIZER_S = 40
FIRSTS = (0, 63, 64, 2, 255, 256, 299, 1000, 2998, 2999, 3000, 9001)
"""Positions of queries over a ring of 3000: at the edges of tiles, of splits and of the ring, and past it."""
PRODUCT_ROWS = (1, 3, 16, 17, 33, 64, 65, 128)


def env(task: Task) -> Values:
    """Return versions, and the reference rates of copies, reads and bfloat16 products."""
    found: Values = {"python": sys.version.split()[0], "cores": os.cpu_count(), "cuda": torch.version.cuda}
    found["computed_copy_tb_s"] = card_here().copy_bytes_per_s / 1e12
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    import_module("antiphon.engine.engine")
    found["compute_sanitizer"] = sanitizer_state()
    if device().type == "cpu":
        return found
    properties = torch.cuda.get_device_properties(device())
    found |= {"card": properties.name, "units": properties.multi_processor_count}
    found |= {"free_bytes": torch.cuda.mem_get_info()[0], "cudnn": torch.backends.cudnn.version()}
    source = torch.ones(2**28 if task.is_small else 2**30, dtype=torch.int32, device=device())
    target = torch.empty_like(source)
    found["copy_tb_s"] = 2 * source.nbytes / median_ms(lambda: target.copy_(source)) / 1e9
    found["read_tb_s"] = source.nbytes / median_ms(lambda: source.view(torch.float32).amax()) / 1e9
    square = torch.randn(8192, 8192, device=device(), dtype=torch.bfloat16)
    found["bf16_tflop_s"] = 2 * 8192**3 / median_ms(lambda: square @ square) / 1e9
    return found


def sanitizer_state() -> str:
    """Return whether compute-sanitizer runs here, as text: some rented machines deny it the device."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return "not installed"
    kernel = "import torch; torch.zeros(1, device='cuda' if torch.cuda.is_available() else 'cpu')"
    command = [program, sys.executable, "-c", kernel]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SANITIZER_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {SANITIZER_S} s"
    last = (ended.stdout + ended.stderr).strip().splitlines()[-1:]
    return f"exit code {ended.returncode}: {' '.join(last)}"[:200]


def compile_one(task: Task) -> Values:
    """Run two ticks of a model of full width and two layers, so that every kernel of this batch is
    compiled."""
    start_s = time.perf_counter()
    with torch.no_grad():
        tick = our_tick(make_backend(replace(task, is_shallow=True)), task.batch)
        tick()
        tick()
    return {"batch": task.batch, "s": time.perf_counter() - start_s}


def compile_all(task: Task) -> Values:
    """Compile the kernels of all batches at once, one process each: Triton compiles on one core, with a
    common cache on disk."""
    start_s = time.perf_counter()
    running = []
    for batch in COMPILED_BATCHES[:1] if task.is_small else COMPILED_BATCHES:
        words = [
            "--step",
            "compile_one",
            "--batch",
            str(batch),
            "--model",
            task.model,
            "--out",
            str(task.out),
        ]
        command = [
            sys.executable,
            "-m",
            "lab.bench.gpu_session",
            *words,
            *(["--small"] if task.is_small else []),
        ]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    ended = [(process.communicate()[0].strip().splitlines()[-1:], process.returncode) for process in running]
    return {
        "s": time.perf_counter() - start_s,
        "batches": ended,
        "failed": sum(bool(code) for _, code in ended),
    }


def kernels(task: Task) -> Values:
    """Measure the relative error of attention and of products, each separately, in bfloat16 at full width,
    compared with float64."""
    found: Values = {}

    def check(name: str, run: Callable[[], float]) -> None:
        try:
            found[name] = run()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        note({name: found[name]})

    for form in KVForm:
        check(f"attention, {form}", partial(attention_error, task, form))
    shapes = ((96, 48),) if task.is_small else ((4096, 12288), (11264, 4096), (1024, 1024), (1024, 5632))
    for depth, columns in shapes:
        linear = Int8Linear(*quantize_tokens(torch.randn(columns, depth, device=device())))
        for rows in PRODUCT_ROWS[:4] if task.is_small else PRODUCT_ROWS:
            check(f"product {depth}x{columns}, {rows} rows", partial(product_error, task, linear, rows))
    return found


def product_error(task: Task, linear: Int8Linear, rows: int) -> float:
    """Measure the error of an INT8 product of random rows, compared with float64 over the same integers."""
    x = torch.randn(rows, linear.in_features, device=device(), dtype=task.form.dtype)
    values, scale = quantize_tokens(x)
    want = (values.double() @ linear.weight.double().t()) * linear.scale * scale[:, None]
    return relative_error(linear_rows(linear, plain_rows(x, linear)), want)


def attention_error(task: Task, form: KVForm) -> float:
    """Measure the error of decode attention over rings written as the model writes them, compared with
    float64 over their content."""
    torch.manual_seed(1)
    capacity, heads, dtype = (300, 2, torch.float32) if task.is_small else (3000, 32, torch.bfloat16)
    firsts = [first for first in FIRSTS if first < 300 or not task.is_small]
    ring = KVRing("ring", heads, capacity, 128, dtype, "position", form)
    state, rows = State([spec.pooled() for spec in ring.specs()], len(firsts), device()), len(firsts)
    step = state.step(range(rows))
    slots = torch.arange(capacity, device=device()).expand(rows, capacity)
    k, v = torch.randn(2, rows, heads, capacity, 128, device=device(), dtype=dtype)
    ring.write(step, slots, k, v)
    q = torch.randn(rows, heads, 1, 128, device=device(), dtype=dtype)
    first = torch.tensor(firsts, device=device())
    got = decode_attention(q, ring.view(step), first, step.rows, capacity)
    wide = replace(ring, dtype=torch.float64)
    keys, values = wide.read(step, step.runs[0], capacity)
    is_hidden = torch.arange(capacity, device=device()) > first[:, None]
    scores = (q.double() @ keys.double().transpose(-1, -2)) / 128**0.5
    want: Tensor = scores.masked_fill(is_hidden[:, None, None], float("-inf")).softmax(-1) @ values.double()
    return relative_error(got, want)
