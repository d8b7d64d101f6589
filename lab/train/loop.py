"""Common parts of all trainers: the schedule, the optimiser's state, the log, saving, and stopping."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

SAVE_EVERY_S = 240.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of a run: a linear warm-up, then a cosine down to a share of the peak rate."""

    peak_learning_rate: float
    warm_up_steps: int
    total_steps: int
    final_share: float = 0.03
    weight_decay: float = 0.05

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of the step that follows ``step`` other steps."""
        progress = min(1.0, step / self.total_steps)
        fall = self.final_share + (1 - self.final_share) * 0.5 * (1 + math.cos(math.pi * progress))
        return self.peak_learning_rate * min(1.0, (step + 1) / self.warm_up_steps) * fall


class Trainee(Protocol):
    """A model in training, as :func:`run` trains it."""

    out: Path

    @property
    def step(self) -> int:
        """The number of steps taken so far, including earlier runs."""

    def train_step(self) -> Mapping[str, float]:
        """Take one step; returns the parts of its loss."""

    def notes(self) -> Mapping[str, float]:
        """Return further values for the log after this step; the place to evaluate and to look for data."""

    def save(self) -> None:
        """Write everything needed to resume."""


class WorkingClock:
    """A clock that excludes the time for which the process was stopped (SIGSTOP, SIGCONT), in seconds.

    It is exact to the time since the last call, so call it at every step.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._left_out_s = clock, 0.0
        self._asked_s = clock()
        signal.signal(signal.SIGCONT, self._go_on)

    def __call__(self) -> float:
        """The current seconds."""
        self._asked_s = self._clock()
        return self._asked_s - self._left_out_s

    def _go_on(self, *_: object) -> None:
        self._left_out_s += self._clock() - self._asked_s
        self._asked_s = self._clock()


def run(
    trainee: Trainee,
    total_steps: int,
    minutes: float,
    *,
    log_every: int = 25,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Train for ``minutes`` or to the end of the schedule, and log a JSON line every ``log_every`` steps."""
    start_s = saved_s = clock()
    first_step = trainee.step
    taken = dict[str, list[float]]()
    with (trainee.out / "log.jsonl").open("a") as log:
        while trainee.step < total_steps and clock() - start_s < minutes * 60:
            for name, value in trainee.train_step().items():
                taken.setdefault(name, []).append(value)
            line: dict[str, float] = {}
            if trainee.step % log_every == 0:
                rate = (trainee.step - first_step) / (clock() - start_s)
                line = {"step": trainee.step, "steps_per_s": round(rate, 3)}
                line |= {name: round(fmean(values), 4) for name, values in taken.items()}
                taken = {}
            line |= trainee.notes()
            if line:
                log.write(json.dumps(line) + "\n")
                log.flush()
                sys.stderr.write(json.dumps(line) + "\n")
            if clock() - saved_s > SAVE_EVERY_S:
                trainee.save()
                saved_s = clock()
    trainee.save()


def run_until_stopped(trainee: Trainee, total_steps: int, minutes: float, *, log_every: int = 25) -> int:
    """Train as :func:`run` does, and save also on Ctrl-C or SIGTERM; returns the exit status.

    A pause by SIGSTOP and SIGCONT does not count.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(trainee, total_steps, minutes, log_every=log_every, clock=WorkingClock())
    except KeyboardInterrupt:
        trainee.save()
        return 130
    return 0


def add_arguments(parser: argparse.ArgumentParser, *, steps: int) -> None:
    """Add the options of every trainer."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=120, help="[%(default)s]")
    parser.add_argument("--steps", type=int, default=steps, help="length of the schedule [%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")


def fast_arithmetic(device: str = "cpu") -> torch.autocast:
    """Return a context with products in bfloat16 if the device has it and it is faster, otherwise in float32.

    On one thread a step of the recogniser took 0.86 s in float32 and 3.0 s in bfloat16 on a Xeon without it,
    0.77 s and 1.18 s on one with AVX-512's and without AMX (medians).
    """
    if device != "cpu":
        return torch.autocast(device, torch.bfloat16)
    return torch.autocast("cpu", torch.bfloat16, enabled=is_fast_in_bfloat16())


@cache
def is_fast_in_bfloat16(clock: Callable[[], float] = time.process_time) -> bool:
    """Return whether this CPU has bfloat16 and multiplies matrices faster in it: a Xeon with AVX-512's
    bfloat16 and without AMX does not."""
    can = torch.cpu.get_capabilities()
    if not any(can.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16")):
        return False
    lasting = dict[torch.dtype, float]()
    for kind in (torch.float32, torch.bfloat16):
        matrix, times = torch.ones(512, 512, dtype=kind), list[float]()
        for _ in range(5):
            start_s = clock()
            matrix @ matrix
            times.append(clock() - start_s)
        lasting[kind] = min(times)
    return lasting[torch.bfloat16] < lasting[torch.float32]


class Course:
    """The state of a training run: the model's optimiser, the steps taken, and the best score, all kept in
    ``trainer.pt``.

    ``judged`` is the model to be judged and shipped: the average of the weights over about
    ``averaged_steps``, or the model itself if these are 0.
    """

    def __init__(self, model: nn.Module, schedule: Schedule, out: Path, averaged_steps: int = 0) -> None:
        """Resume from ``out``, or begin."""
        self.model, self.schedule = model, schedule
        self.step, self.best = 0, 0.0
        decayed = [p for p in model.parameters() if p.dim() > 1]
        plain = [p for p in model.parameters() if p.dim() <= 1]
        groups = [
            {"params": decayed, "weight_decay": schedule.weight_decay},
            {"params": plain, "weight_decay": 0},
        ]
        self.optimizer = torch.optim.AdamW(groups, schedule.peak_learning_rate, betas=(0.9, 0.97), fused=True)
        self._average: AveragedModel | None = None
        if averaged_steps:
            decay = get_ema_multi_avg_fn(1 - 1 / averaged_steps)
            self._average = AveragedModel(model, multi_avg_fn=decay, use_buffers=True)
            self._average.update_parameters(model)  # the first is copied
        self._path = out / "trainer.pt"
        out.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            state = torch.load(self._path, map_location="cpu", weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.best = state["step"], state["best"]
            if self._average is not None and "average" in state:
                self._average.load_state_dict(state["average"])
            elif self._average is not None:  # it was trained without one
                self._average.module.load_state_dict(state["model"])

    @property
    def judged(self) -> nn.Module:
        """The model with averaged weights, or the model itself without an average."""
        return self.model if self._average is None else self._average.module

    def update(self, loss: Tensor) -> None:
        """Take one step down this loss's gradient, which is clipped to 1."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate(self.step)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        if self._average is not None:
            self._average.update_parameters(self.model)

    def save(self) -> None:
        """Write the state, so that a kill at any moment leaves a complete file."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self._average is not None:
            state["average"] = self._average.state_dict()
        part = self._path.with_suffix(".part")
        torch.save({**state, "step": self.step, "best": self.best}, part)
        part.replace(self._path)

    def is_best(self, score: float) -> bool:
        """Return whether no earlier score was higher; if so, store it as the best score."""
        if score < self.best:
            return False
        self.best = score
        return True


def checkpoint_in(folder: Path) -> Path:
    """Return the best checkpoint of a trainer's folder, else the last; a folder with weights is itself a
    checkpoint.

    Raises:
        SystemExit: there is none.
    """
    for found in (folder, folder / "best", folder / "last"):
        if (found / "model.safetensors").exists():
            return found
    raise SystemExit(f"no checkpoint in {folder}; a trainer of lab.train writes best/ and last/ there")


def write_lm(lm: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """Write a language model in bfloat16 and its configuration in the published layout."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.to("cpu", torch.bfloat16).contiguous() for name, tensor in lm.state_dict().items()
    }
    save_file(weights, folder / "model.part")
    (folder / "model.part").replace(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n")
