"""The step "parity" of ``lab.bench.gpu_session``: compares kernels in captured graphs with a CPU.

Two roundings of one model diverge within some ticks, since the output becomes input. Therefore both sides
continue with the CPU's codes and tokens in every tick. Logits, hidden vectors and PCM are compared by
relative error, within a limit for each form; tokens are compared if no such difference of logits can change
them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.backends.base import StepInputs
from antiphon.backends.host import HostBackend
from antiphon.backends.torch.executor import TorchRows
from antiphon.backends.torch.frames import TorchFrames
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.kernels import fused
from antiphon.backends.torch.pipeline import BatchLayout
from antiphon.backends.torch.sampling import gumbel_noise
from antiphon.backends.torch.state import Step
from antiphon.models.sampling import SamplingParameters
from lab.bench.gpu_card import Task, Values, device, note
from lab.bench.gpu_models import (
    Form,
    Size,
    empty_modules,
    fill_randomly,
    lm_spec,
    model_spec,
    published_sizes,
    small_size,
)

PARITY_ROWS, FEW_PARITY_ROWS = 4, 2
PARITY_TICKS, PARITY_SEED = 100, 5
FEW_TICKS, FEW_SEED = 20, 8
"""For a shrunk model: both rows pause, and one restarts in the fourth tick.

20 interpreted ticks take 33 s of a core, half of it in ``make_and_multiply``.
"""
BOUNDS: Final = {"float32": 0.01, "int8": 0.1}
"""Largest relative errors that count as rounding, by form."""
CODES_BOUND: Final = 0.05
"""Share of input codes that may differ, if two entries of a codebook are about equally near."""
FEW_STREAMS: Final = {"n_q": 4, "dep_q": 2, "delays": [0, 0, 1, 0, 1]}
"""For a shrunk model without a GPU: each kernel runs several times, and is slow when interpreted."""
GREEDY = SamplingParameters(text_temperature=0, audio_temperature=0)
SEEDED = SamplingParameters(text_seed=3, audio_seed=4)


class Watched:
    """A backend whose stages record their results, and continue with given codes and tokens if requested.

    Buffers are fixed by place, so captured graphs do the same. In the pipeline it replaces its sampler.
    """

    def __init__(self, backend: HostBackend, *, is_given: bool) -> None:
        """Wrap a backend; ``is_given``: it continues with the codes and tokens of :meth:`give`."""
        assert isinstance(backend.executor, TorchRows)
        pipeline = backend.executor.pipeline
        lm, generator = pipeline.spec.lm, pipeline.generator
        assert lm is not None
        assert generator is not None
        self.backend, self.pipeline, self._is_given = backend, pipeline, is_given
        rows, place = backend.info.slots, pipeline.device
        self.codes, self._given_codes = (torch.zeros_like(pipeline.buffers.codes) for _ in range(2))
        tokens = torch.zeros(2, rows, 1 + lm.dep_q, dtype=torch.int64, device=place)
        self.tokens, self._given_tokens = tokens
        self.text_logits = torch.zeros(rows, lm.text_card, device=place)
        self.audio_logits = torch.zeros(rows, lm.dep_q, lm.card, device=place)
        self.hidden = torch.zeros(rows, lm.dim, device=place)
        self._encode, self._read, self._sampler = pipeline.encode, generator._read, pipeline.sampler
        vars(pipeline).update(encode=self._watched_encode, sampler=self)
        vars(generator).update(_read=self._watched_read)

    def __getattr__(self, name: str) -> Any:
        """Forward all other attributes to the sampler."""
        return getattr(self._sampler, name)

    def give(self, codes: Tensor, tokens: Tensor) -> None:
        """Set the codes and tokens with which the next tick continues, whatever it computes."""
        self._given_codes[: len(codes)].copy_(codes)
        self._given_tokens[: len(tokens)].copy_(tokens)

    def _watched_encode(self, places: BatchLayout) -> None:
        self._encode(places)
        codes = self.pipeline.buffers.codes[: places.count]
        self.codes[: places.count].copy_(codes)
        if self._is_given:
            codes.copy_(self._given_codes[: places.count])

    def _watched_read(self, tokens: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        hidden, logits = self._read(tokens, step)
        self.hidden[: len(hidden)].copy_(hidden[:, 0])
        return hidden, logits

    def text(self, logits: Tensor, step: Step, frames: Tensor) -> Tensor:
        """Sample text tokens, and record the logits."""
        self.text_logits[: len(logits)].copy_(logits)
        assert self._sampler is not None
        return self._goes_on(0, self._sampler.text(logits, step, frames))

    def audio(self, codebook: int, logits: Tensor, frames: Tensor) -> Tensor:
        """Sample codes of a codebook, and record the logits."""
        self.audio_logits[: len(logits), codebook].copy_(logits)
        assert self._sampler is not None
        return self._goes_on(1 + codebook, self._sampler.audio(codebook, logits, frames))

    def _goes_on(self, stream: int, chosen: Tensor) -> Tensor:
        self.tokens[: len(chosen), stream].copy_(chosen)
        return self._given_tokens[: len(chosen), stream] if self._is_given else chosen


@dataclass
class Compared:
    """The largest relative error of each kind, and the choices that no difference of logits explains."""

    bound: float
    errors: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    ticks: int = 0
    choices: int = 0
    certain: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether all errors and choices are within the limits."""
        return not self.wrong

    def add(self, name: str, got: Tensor, want: Tensor) -> None:
        """Compare the values of the GPU (``got``) with those of the CPU (``want``)."""
        error = float((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-12))
        self.note(name, error, self.bound)

    def note(self, name: str, error: float, bound: float) -> None:
        """Record an error; NaN exceeds every limit."""
        self.errors[name] = max(self.errors[name], error)
        if not error <= bound:
            self.wrong.append(f"tick {self.ticks}: {name} differs by {error:.2g}, bound {bound:g}")

    def values(self) -> Values:
        """Return the results as JSON."""
        return {"ticks": self.ticks, "errors": self.errors, "choices": self.choices,
                "certain": self.certain, "wrong": self.wrong[:5]}  # fmt: skip


def is_certain(logits: Tensor, off: float, parameters: tuple[float, int], noise: Tensor, chosen: int) -> bool:
    """Whether ``chosen`` is still chosen if any values up to ``off`` are added to the logits ``[V]``.

    ``parameters``: temperature and top-k.
    """
    temperature, topk = parameters
    if not temperature:
        scores, may_win = logits.double(), torch.ones_like(logits, dtype=torch.bool)
    else:
        scaled, off = logits.double() / temperature, off / temperature
        ranked, k = scaled.sort(descending=True).values, min(topk or len(scaled), len(scaled))
        may_win, scores = scaled >= ranked[k - 1] - 2 * off, scaled + noise
        if k < len(scaled) and scaled[chosen] - ranked[k] <= 2 * off:
            return False
    may_win[chosen] = False
    return bool((scores[chosen] - scores[may_win] > 2 * off).all())


def compare(
    backends: tuple[HostBackend, HostBackend], ticks: int, bound: float, seed: int = PARITY_SEED
) -> Compared:
    """Compare up to ``ticks`` ticks of random rows, some restarted, on two backends, until one differs."""
    want, got = (
        Watched(backend, is_given=given) for backend, given in zip(backends, (False, True), strict=True)
    )
    slots = backends[0].info.slots
    parameters = [
        (GREEDY, SEEDED)[row] if row < 2 else SamplingParameters(text_seed=row) for row in range(slots)
    ]
    for backend in backends:
        for row, each in enumerate(parameters):
            backend.set_parameters(row, each)
    random, found, ages = np.random.default_rng(seed), Compared(bound), np.zeros(slots, np.int64)
    while found.ticks < ticks and found.is_same:
        rows = random.permutation(np.flatnonzero(random.random(slots) < 0.8)).astype(np.int32)
        rows = rows if rows.size else np.zeros(1, np.int32)
        reset = random.random(rows.size) < 0.05 if found.ticks else np.ones(rows.size, np.bool_)
        if not found.ticks:
            rows, reset = np.arange(slots, dtype=np.int32), np.ones(slots, np.bool_)
        ages[rows[reset]] = 0
        inputs = StepInputs(rows, reset, random.normal(0, 0.1, (rows.size, 1920)).astype(np.float32))
        outputs = want.backend.step(inputs)
        got.give(want.codes[: rows.size], want.tokens[: rows.size])
        others = got.backend.step(inputs)
        emitted, count = outputs.emitted, rows.size
        for name in ("text_logits", "audio_logits", "hidden"):
            one, other = (getattr(side, name)[:count].cpu() for side in (got, want))
            found.add(name, one, other)
        if outputs.pcm is not None and others.pcm is not None and emitted.any():
            found.add(
                "pcm",
                *(torch.from_numpy(side.pcm[emitted]) for side in (others, outputs) if side.pcm is not None),
            )
        heard = want.pipeline.input_codebooks
        differing = (got.codes[:count, :heard].cpu() != want.codes[:count, :heard]).float().mean()
        found.note("codes", float(differing), CODES_BOUND)
        _compare_choices(want, got, [parameters[row] for row in rows], ages[rows], found)
        ages[rows] += 1
        found.ticks += 1
    return found


def _compare_choices(
    want: Watched,
    got: Watched,
    parameters: list[SamplingParameters],
    ages: NDArray[np.int64],
    found: Compared,
) -> None:
    """Check that tokens with a certain choice are equal."""
    chosen, others = want.tokens, got.tokens.cpu()
    for place, (each, age) in enumerate(zip(parameters, ages.tolist(), strict=True)):
        for stream in range(chosen.shape[1]):
            sides = [
                (side.audio_logits[place, stream - 1] if stream else side.text_logits[place]).cpu()
                for side in (want, got)
            ]
            off = float((sides[0] - sides[1]).abs().max()) + 1e-6 * float(sides[0].abs().max())
            seed = each.audio_seed if stream else each.text_seed
            noise = gumbel_noise(
                torch.tensor([[seed]]), torch.tensor([age]), torch.tensor([stream]), len(sides[0])
            )[0, 0]
            drawn = (
                (each.audio_temperature, each.audio_topk)
                if stream
                else (each.text_temperature, each.text_topk)
            )
            token = int(chosen[place, stream])
            found.choices += 1
            if is_certain(sides[0], off, drawn, noise, token):
                found.certain += 1
                if int(others[place, stream]) != token:
                    found.wrong.append(f"tick {found.ticks}: place {place}, stream {stream}: another token")


def two_backends(
    size: Size, *, int8: bool, rows: int, attention: str = "auto"
) -> tuple[HostBackend, HostBackend]:
    """Return two backends with the same weights: on a CPU by torch only, and on the GPU by kernels and
    graphs.

    Without a GPU the second is on the CPU too, with the same kernels interpreted.
    """
    made = []
    for by, where in (("torch", torch.device("cpu")), (attention, device())):
        mimi, model = empty_modules(size, Form.of(is_int8=int8, dtype=torch.float32), by)
        for module in (mimi, model):
            fill_randomly(module.to_empty(device="cpu"))
            module.to(where)
        spec = model_spec(size)
        generator = Generator(model.prepare(int8=int8), lm_spec(size))
        made.append(HostBackend(spec, TorchFrames(spec, mimi.prepare(), generator), slots=rows))
    return made[0], made[1]


def parity(task: Task) -> Values:
    """Compare sessions that pause and restart on the GPU, with captured graphs, with those of a CPU."""
    size = small_size(published_sizes()[task.model])
    if device().type == "cpu":
        size = replace(size, lm={**size.lm, **FEW_STREAMS})
        fused.DEVICES = ("cpu",)  # type: ignore[misc]
    found: Values = {"is_same": True}
    for int8 in (True,) if task.is_small else (False, True):
        form = "int8" if int8 else "float32"
        with torch.no_grad():
            backends = two_backends(size, int8=int8, rows=FEW_PARITY_ROWS if task.is_small else PARITY_ROWS)
            ticks, seed = (FEW_TICKS, FEW_SEED) if task.is_small else (PARITY_TICKS, PARITY_SEED)
            compared = compare(backends, ticks, BOUNDS[form], seed)
        found[form] = compared.values()
        found["is_same"] &= compared.is_same
        note(found)
    return found
