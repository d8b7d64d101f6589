"""What all trainers share: the schedule, an optimiser's course through it, the log, saving and stopping."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

SAVE_EVERY_S = 240.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of a run: a linear warm-up, then a cosine down to a share of its peak."""

    peak_learning_rate: float
    warm_up_steps: int
    total_steps: int
    final_share: float = 0.03
    weight_decay: float = 0.05

    def learning_rate(self, step: int) -> float:
        """The rate of the step that follows ``step`` others."""
        progress = min(1.0, step / self.total_steps)
        fall = self.final_share + (1 - self.final_share) * 0.5 * (1 + math.cos(math.pi * progress))
        return self.peak_learning_rate * min(1.0, (step + 1) / self.warm_up_steps) * fall


class Trainee(Protocol):
    """What :func:`run` trains."""

    out: Path

    @property
    def step(self) -> int:
        """Steps taken so far, earlier runs included."""

    def train_step(self) -> Mapping[str, float]:
        """Take one step; returns the parts of its loss."""

    def notes(self) -> Mapping[str, float]:
        """What the log should say besides, after this step; the place to judge and to look for data."""

    def save(self) -> None:
        """Write everything needed to go on."""


def run(
    trainee: Trainee,
    total_steps: int,
    minutes: float,
    *,
    log_every: int = 25,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Train for so many minutes or to the schedule's end, logging a JSON line every ``log_every`` steps."""
    start_s = saved_s = clock()
    first_step = told_step = trainee.step
    sums = dict[str, float]()
    with (trainee.out / "log.jsonl").open("a") as log:
        while trainee.step < total_steps and clock() - start_s < minutes * 60:
            for name, value in trainee.train_step().items():
                sums[name] = sums.get(name, 0.0) + value
            line: dict[str, float] = {}
            if trainee.step % log_every == 0:
                rate = (trainee.step - first_step) / (clock() - start_s)
                line = {"step": trainee.step, "steps_per_s": round(rate, 3)}
                line |= {name: round(value / (trainee.step - told_step), 4) for name, value in sums.items()}
                sums, told_step = {}, trainee.step
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
    """:func:`run`, saving too on Ctrl-C or SIGTERM; returns the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(trainee, total_steps, minutes, log_every=log_every)
    except KeyboardInterrupt:
        trainee.save()
        return 130
    return 0


def add_arguments(parser: argparse.ArgumentParser, *, steps: int) -> None:
    """The options of every trainer."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=120, help="[%(default)s]")
    parser.add_argument("--steps", type=int, default=steps, help="length of the schedule [%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")


def fast_arithmetic() -> torch.autocast:
    """Products in bfloat16 where the CPU has them, in float32 elsewhere.

    On a Xeon without them a step of the recogniser took 0.86 s in float32 and 3.0 s in bfloat16 (one thread,
    medians of 5).
    """
    can = torch.cpu.get_capabilities()
    has_bfloat16 = any(can.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
    return torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16)


class Course:
    """A model on its way: its optimiser, the steps taken, the best score, all kept in ``trainer.pt``."""

    def __init__(self, model: nn.Module, schedule: Schedule, out: Path) -> None:
        """Go on where ``out`` says, or begin."""
        self.model, self.schedule = model, schedule
        self.step, self.best = 0, 0.0
        decayed = [p for p in model.parameters() if p.dim() > 1]
        plain = [p for p in model.parameters() if p.dim() <= 1]
        groups = [
            {"params": decayed, "weight_decay": schedule.weight_decay},
            {"params": plain, "weight_decay": 0},
        ]
        self.optimizer = torch.optim.AdamW(groups, schedule.peak_learning_rate, betas=(0.9, 0.97), fused=True)
        self._path = out / "trainer.pt"
        out.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            state = torch.load(self._path, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.best = state["step"], state["best"]

    def update(self, loss: Tensor) -> None:
        """One step down this loss's gradient, clipped to 1."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate(self.step)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1

    def save(self) -> None:
        """Write the state, so that a kill at any moment leaves a whole one."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        part = self._path.with_suffix(".part")
        torch.save({**state, "step": self.step, "best": self.best}, part)
        part.replace(self._path)

    def is_best(self, score: float) -> bool:
        """Whether no score was higher; it is then the one to beat."""
        if score < self.best:
            return False
        self.best = score
        return True


def write_lm(lm: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """Write a language model and its configuration in the published layout, bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in lm.state_dict().items()}
    save_file(weights, folder / "model.part")
    (folder / "model.part").replace(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n")
