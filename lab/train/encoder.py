"""Teach the codec's encoder to write what was said, whatever noise, room and line leave of it.

Usage: python -m lab.train.encoder --questions out/train/questions --codec server/antiphon/assets/tiny \\
           --test out/train/questions-test --out out/train/encoder --minutes 60

For the sound at a microphone it is taught the codes that the encoder of ``--codec`` has for the speech alone,
and for noise and music those of silence (distillation, Hinton et al. 2015). Codebooks and decoder stay, so
that codes mean what they meant and models trained on them still hear and speak. Stops and goes on as
lab.train.talker does.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from lab.train.codec import load_mimi
from lab.train.excerpts import Excerpts, Heard, Shape, latent_of
from lab.train.loop import Course, Schedule, add_arguments, fast_arithmetic, run_until_stopped
from lab.train.questions import Utterance, read_shard
from lab.train.shards import shards_in

SCHEDULE: Final = Schedule(peak_learning_rate=4e-4, warm_up_steps=100, total_steps=8000, weight_decay=1e-3)
WEIGHTS: Final = (3.0, 3.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.5)
"""Of the codebooks: the later ones say less of what was said, and are hardly to be told."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is made of."""

    shape: Shape = field(default_factory=Shape)
    cold_frames: int = 4
    """At the start of an excerpt, not trained: the encoder has seen nothing before."""
    latent_weight: float = 1.0
    averaged_steps: int = 300
    judge_every_steps: int = 250
    judged_excerpts: int = 64
    seed: int = 21


@dataclass(frozen=True, slots=True)
class Branch:
    """One of Mimi's two quantizers: its projection, and its codebooks ``[K, bins, dimension]``."""

    project: nn.Module
    books: Tensor

    @classmethod
    def both(cls, mimi: Any) -> tuple[Branch, Branch]:
        """The semantic one of one codebook, and the acoustic one of all others."""
        first, rest = (
            cls(rvq.input_proj, torch.stack([layer.embedding for layer in rvq.vq.layers]).detach())
            for rvq in (mimi.quantizer.rvq_first, mimi.quantizer.rvq_rest)
        )
        return first, rest

    def losses(self, latent: Tensor, wanted: Tensor, counts: Tensor) -> tuple[list[Tensor], Tensor]:
        """By codebook the cross entropy of the codes of ``wanted [B, C, T]``, and the latents' distance.

        A code is as likely as its vector is near, in units of the distance that rounding leaves. What later
        codebooks round is told by the wanted codes of those before.
        """
        rest, wanted_rest = (self.project(one).transpose(1, 2)[counts] for one in (latent, wanted))
        far = (rest - wanted_rest).pow(2).mean() / wanted_rest.var()
        entropies = []
        for book in self.books:
            distances = torch.cdist(rest, book).pow(2)
            codes = torch.cdist(wanted_rest, book).argmin(1)
            chosen = book[codes]
            unit = (wanted_rest - chosen).pow(2).sum(1).mean()
            entropies.append(functional.cross_entropy(-distances / unit, codes))
            rest, wanted_rest = rest - chosen, wanted_rest - chosen
        return entropies, far


def encoding_parts(mimi: Any) -> nn.ModuleList:
    """What is trained: everything before the quantizers."""
    return nn.ModuleList([mimi.encoder, mimi.encoder_transformer, mimi.downsample])


class Trainer:
    """The encoder, the one that it learns from, and what both hear."""

    def __init__(
        self,
        settings: Settings,
        schedule: Schedule,
        questions: Path,
        test: Path,
        codec: Path,
        out: Path,
        *,
        is_compiled: bool = False,
    ) -> None:
        self.settings, self.out, self.codec, self.test = settings, out, codec, test
        torch.manual_seed(settings.seed)
        self.teacher, self.mimi, self._shipped = (
            load_mimi(codec).eval().requires_grad_(False) for _ in range(3)
        )
        self.branches = Branch.both(self.teacher)
        parts = encoding_parts(self.mimi).requires_grad_(True)
        self.course = Course(parts, schedule, out, settings.averaged_steps)
        if is_compiled:
            self.mimi.encoder.forward = torch.compile(self.mimi.encoder.forward)
        asked = _utterances(questions)
        sys.stderr.write(f"{sum(one.pcm.size for one in asked) / 24_000 / 3600:.1f} hours of questions\n")
        excerpts = Excerpts(asked, self.teacher, settings.shape, settings.seed)
        left = range(self.step, schedule.total_steps)
        self._batches = iter(
            DataLoader(excerpts, batch_size=None, sampler=left, num_workers=1, prefetch_factor=16)
        )

    @cached_property
    def _judged_by(self) -> Heard:
        settings = self.settings
        shape = replace(settings.shape, batch=settings.judged_excerpts)
        return Excerpts(_utterances(self.test), self.teacher, shape, settings.seed + 1, held_out=True)[0]

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return self.course.step

    def train_step(self) -> dict[str, float]:
        """One batch; returns the parts of its loss."""
        batch = next(self._batches)
        with fast_arithmetic():
            latent = latent_of(self.mimi, batch.heard)
        counts = torch.ones(latent.shape[0], latent.shape[2], dtype=torch.bool)
        counts[:, : self.settings.cold_frames] = False
        (semantic, first_far), (acoustic, rest_far) = (
            branch.losses(latent, batch.wanted, counts) for branch in self.branches
        )
        entropies = torch.stack([*semantic, *acoustic])
        far = first_far + rest_far
        weights = torch.tensor(WEIGHTS)
        self.course.update((entropies * weights).sum() / weights.sum() + self.settings.latent_weight * far)
        return {"first": entropies[0].item(), "all": entropies.mean().item(), "far": far.item()}

    def notes(self) -> dict[str, float]:
        """From time to time how many codes of held-out speech are those of it alone."""
        if self.step % self.settings.judge_every_steps:
            return {}
        return {
            f"same_{name}": round(share, 4)
            for name, share in agreement(self._average(), self._judged_by).items()
        }

    def _average(self) -> Any:
        encoding_parts(self._shipped).load_state_dict(self.course.judged.state_dict())
        return self._shipped

    def save(self) -> None:
        """Write everything needed to go on, and the codec with its encoder's average."""
        self.course.save()
        weights = {name: tensor.contiguous() for name, tensor in self._average().state_dict().items()}
        save_file(weights, self.out / "mimi.part")
        (self.out / "mimi.part").replace(self.out / "mimi.safetensors")
        config = json.loads((self.codec / "mimi_config.json").read_text())
        (self.out / "mimi_config.json").write_text(json.dumps(config, indent=2) + "\n")


def agreement(mimi: Any, batch: Heard) -> dict[str, float]:
    """The share of codes of what is heard that the speech alone has: of the first codebook, of all."""
    with torch.no_grad():
        codes = torch.cat([mimi.encode(heard[None]) for heard in batch.heard])
        same = (codes == mimi.quantizer.encode(batch.wanted)).float()
    return {"first": same[:, 0].mean().item(), "all": same.mean().item()}


def _utterances(folder: Path) -> list[Utterance]:
    shards = shards_in(folder)
    if not shards:
        raise SystemExit(
            f"no shards in {folder}; make them with: python -m lab.train.questions --out {folder}"
        )
    return [one for shard in shards for one in read_shard(shard)]


def main(argv: list[str] | None = None) -> int:
    """Train, or go on training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=Path, required=True, help="folder made by lab.train.questions")
    parser.add_argument("--test", type=Path, required=True, help="one of held-out questions")
    parser.add_argument("--codec", type=Path, required=True, help="folder of the codec to start from")
    parser.add_argument(
        "--rate", type=float, default=SCHEDULE.peak_learning_rate, help="peak learning rate [%(default)s]"
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the convolutions: a third less time, needs a C++ compiler",
    )
    add_arguments(parser, steps=SCHEDULE.total_steps)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    schedule = replace(SCHEDULE, total_steps=options.steps, peak_learning_rate=options.rate)
    trainer = Trainer(
        Settings(),
        schedule,
        options.questions,
        options.test,
        options.codec,
        options.out,
        is_compiled=options.compile,
    )
    return run_until_stopped(trainer, options.steps, options.minutes)


if __name__ == "__main__":
    sys.exit(main())
