"""Runs upstream's own loop, ``MimiModel`` and ``LMGen``, as a tick that can be timed; moshi is imported
late."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any, TypeAlias

import torch

from lab.bench.gpu_models import Form, Size, fill_randomly
from lab.bench.gpu_ticks import mark

Tick: TypeAlias = Callable[[], dict[str, float]]


def upstream_tick(size: Size, form: Form, batch: int, device: torch.device) -> AbstractContextManager[Tick]:
    """Yield a function that runs a tick of upstream's loop over ``batch`` rows; the host waits after every
    stage, and upstream streams until the block ends.

    Raises:
        ImportError: moshi is not installed.
    """
    loaders: Any = import_module("moshi.models.loaders")
    generator: Any = import_module("moshi.models.lm").LMGen
    no_compile: Any = import_module("moshi.utils.compile").no_compile
    mimi = loaders.get_mimi(None, copy.deepcopy({**size.mimi}), device=device, num_codebooks=size.codebooks)
    lm = loaders.get_moshi_lm(None, copy.deepcopy({**size.lm}), device=device, dtype=form.dtype)
    for module in (mimi, lm):
        fill_randomly(module)
    generation = generator(lm)
    pcm = torch.randn(batch, 1, mimi.frame_size, device=device) * 0.1

    def tick() -> dict[str, float]:
        marks = [time.perf_counter()]
        codes = mimi.encode(pcm)
        mark(marks, device)
        tokens = generation.step(codes[:, : size.heard])
        mark(marks, device)
        if tokens is not None and size.lm["dep_q"]:
            mimi.decode(tokens[:, 1:].clamp(min=0))
            mark(marks, device)
        pairs = zip(("encode", "lm", "decode"), marks, marks[1:], strict=False)
        return {name: 1000 * (end - start) for name, start, end in pairs}

    @contextmanager
    def streaming() -> Iterator[Tick]:
        compiled = nullcontext() if device.type == "cuda" else no_compile()
        with compiled, mimi.streaming(batch), generation.streaming(batch):
            yield tick

    return streaming()
