"""Traces the launches of a tick of a published size on a GPU, with fake CUDA tensors: no GPU is needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.pipeline import Pipeline
from lab.bench.gpu_models import Form, Size, empty_modules, lm_spec, model_spec, prepared
from tests.backends.torch.fake_cuda import Launch, fake_cuda
from tests.backends.torch.recorded import Operation, Recorder, places_of, stages_of


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a tick: torch's ``operations``, the kernels' launches among them, and our kernels'
    ``launches``."""

    operations: tuple[Operation, ...]
    kernels: int
    launches: tuple[Launch, ...]


def traced(size: Size, form: Form, rows: int, attention: str = "auto") -> dict[str, Stage]:
    """Trace a tick of ``rows`` rows on the code paths of a GPU, without memory; return its stages."""
    found = {}
    with fake_cuda() as cuda, torch.no_grad():
        mimi, model = empty_modules(size, form, attention, "cuda")
        generator = Generator(prepared(model, form), lm_spec(size))
        pipeline = Pipeline(model_spec(size), mimi.prepare(), generator, rows=rows)
        places = places_of(pipeline.layout, rows, size.lm["context"])
        for name, stage in stages_of(pipeline, places).items():
            cuda.launches.clear()
            with Recorder() as recorder:
                stage()
            found[name] = Stage(tuple(recorder.operations), len(recorder.kernels), tuple(cuda.launches))
    return found


def distinct(stages: Iterable[Stage]) -> list[Launch]:
    """Return one launch for each machine code of these stages."""
    return list(dict.fromkeys(launch for stage in stages for launch in stage.launches))
