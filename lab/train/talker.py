"""Train the small talker: a Moshi-format duplex LM, in upstream's own modules, on dialogues of the domain.

Usage: python -m lab.train.talker --segments out/train/segments --codec out/train/codec \\
           --out out/train/talker --minutes 120

With --start it begins with the weights of a trained talker, at a lower rate. It stops after ``--minutes``, at
the schedule's end, or on Ctrl-C or SIGTERM; saves every few minutes, keeps the checkpoint with the best
answers, and resumes when run again. New segments are used as they appear.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from lab.train.answers import answers_kept_in
from lab.train.beginnings import (
    nearest_codes,
    start_from_codec,
    start_from_number_line,
    start_from_talker,
)
from lab.train.chains import Chains
from lab.train.codec import load_mimi
from lab.train.dialogues import Composer
from lab.train.domain import Domain
from lab.train.duplex_accuracy import judge
from lab.train.loop import (
    Course,
    add_arguments,
    fast_arithmetic,
    run_until_stopped,
    write_lm,
)
from lab.train.rounding import Rounding, round_in_blocks
from lab.train.segments import CodeArray, Scene, read_segments
from lab.train.shards import shards_in
from lab.train.talker_model import FURTHER_RATE, RATE, Settings, Talker, collate, lm_config
from lab.train.talker_tokenizer import TalkerTokenizer
from lab.train.voicebox import Voicebox

NEAR_CODES = 8


def further(settings: Settings) -> Settings:
    """Return the settings for a talker that can already add, speak and listen.

    At 6 sums a step it forgot some.
    """
    return replace(settings, sums=12, voice_every_steps=2, head_alone_steps=150)


def many_times(settings: Settings, rows: int) -> Settings:
    """Return the settings with ``rows`` times as many rows in a step, for a GPU."""
    more = {name: rows * getattr(settings, name) for name in ("batch", "drills", "sums")}
    return replace(settings, **more)


def recitable(domain: Domain) -> list[tuple[str, int]]:
    """Return the answers whose last words are to be memorised, each with the index of the first of these
    words.
    """
    return [
        (fact.answer, 2 if intent == "count" else len(fact.answer.split()) - 1)
        for intent in ("count", "colour", "sound", "next")
        for fact in domain.facts[intent]
    ]


def voicebox_in(folder: Path, codec: Path, mimi: Any, tokenizer: TalkerTokenizer) -> Voicebox:
    """Return the voicebox of every answer, stored in a trainer's folder by codec and answers."""
    wanted = Domain().answers()
    made_of = hashlib.sha256((codec / "mimi.safetensors").read_bytes() + repr(wanted).encode())
    path = folder / f"voicebox-{made_of.hexdigest()[:12]}.npz"
    if not path.exists():
        Voicebox.encoded(mimi, answers_kept_in(folder / "answers.npz", wanted), tokenizer).keep(path)
    return Voicebox.rounded_in(path, tokenizer)


class Trainer:
    """The talker in training: the model, its optimiser, its position in the schedule, and its data."""

    def __init__(
        self,
        settings: Settings,
        segments: Path,
        test: Path,
        codec: Path,
        out: Path,
        start: Path | None = None,
        device: str = "cpu",
    ) -> None:
        self.settings, self.segments, self.test, self.out = settings, segments, test, out
        out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(settings.seed)
        self.tokenizer = TalkerTokenizer.made(out / "tokenizer.model")
        mimi = load_mimi(codec)
        mimi.eval()
        self.voicebox = voicebox_in(out, codec, mimi, self.tokenizer)
        self.config = lm_config(self.tokenizer.size)
        self.talker = Talker(self.config, settings, nearest_codes(mimi, NEAR_CODES))
        if start is None:
            start_from_codec(self.talker.lm, mimi, (0.5, 1.0))
            start_from_number_line(self.talker.lm, self.tokenizer)
        else:
            start_from_talker(self.talker.lm, start, self.tokenizer)
        self.talker.to(device)
        self.course = Course(self.talker, settings.schedule, out, settings.averaged_steps)
        self.rounding = Rounding(self.talker.lm)
        self.course.optimizer.register_step_pre_hook(self.rounding.restore)
        self.shards: dict[Path, tuple[list[Scene], CodeArray]] = {}
        self.look_for_segments()

    def look_for_segments(self) -> None:
        """Add the shards that have appeared since the last look."""
        for path in shards_in(self.segments):
            if path not in self.shards:
                self.shards[path] = read_segments(path)
        if not self.shards:
            raise SystemExit(
                f"no segments in {self.segments}; make them with: python -m lab.train.segments --help"
            )
        scenes = [scene for scenes, _ in self.shards.values() for scene in scenes]
        quiet = [strip for _, strips in self.shards.values() for strip in strips]
        self.composer = Composer(
            scenes, quiet, self.voicebox, self.settings.frames, recitable(Domain()), Chains(Domain())
        )
        self.questions = sum(len(scene.segments) for scene in scenes)

    @property
    def step(self) -> int:
        """The number of steps taken so far."""
        return self.course.step

    @property
    def is_rounding(self) -> bool:
        """Whether steps already use rounded weights."""
        return self.step >= self.settings.total_steps - self.settings.rounded_steps

    def judged(self) -> Any:
        """Return the language model that is judged and shipped, with rounded weights if the last steps use
        them."""
        lm = cast("Talker", self.course.judged).lm
        if self.settings.rounded_steps:
            lm = deepcopy(lm)
            round_in_blocks(lm)
        return lm

    def train_step(self) -> dict[str, float]:
        """Train on one batch; returns the parts of its loss."""
        settings = self.settings
        rng = np.random.default_rng((settings.seed, self.step))
        dialogues = [self.composer.draw(rng) for _ in range(settings.batch - settings.drills)]
        dialogues += [self.composer.draw_drill(rng) for _ in range(settings.drills)]
        batch = collate(dialogues, self.voicebox.silence, self.tokenizer)
        sums = collate(
            [self.composer.draw_sums(rng) for _ in range(settings.sums)],
            self.voicebox.silence,
            self.tokenizer,
        )
        if self.is_rounding:
            self.rounding.apply()
        with fast_arithmetic(self.talker.device.type):
            parts = self.talker.losses(batch, rng, self.step)
            parts["sums"], *_ = self.talker.read(sums, rng)
        weights = {
            "text": settings.text_weight,
            "audio": settings.audio_weight,
            "words": settings.words_weight,
            "sums": settings.sums_weight,
        }
        self.course.update(torch.stack([weights[name] * part for name, part in parts.items()]).sum())
        return {name: part.item() for name, part in parts.items()}

    def notes(self) -> dict[str, float]:
        """Return values for the log at intervals: the number of questions, and the marks of a test; the best
        checkpoint is kept."""
        notes: dict[str, float] = {}
        if self.step % 200 == 0:
            self.look_for_segments()
            notes["questions"] = self.questions
        if self.step % self.settings.judge_every_steps == 0 and self.test.exists():
            judged = self.judged()
            marks = judge(judged, self.test, self.tokenizer)
            notes |= marks.rounded()
            if self.course.is_best(marks.score):
                write_lm(judged, self.config, self.out / "best")
        return notes

    def save(self) -> None:
        """Write everything needed to resume."""
        self.rounding.restore()  # a step may have been interrupted
        self.course.save()
        write_lm(self.judged(), self.config, self.out / "last")


def main(argv: list[str] | None = None) -> int:
    """Train, or resume training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--segments", type=Path, required=True, help="folder made by lab.train.segments")
    parser.add_argument("--test", type=Path, required=True, help="a shard of held-out segments")
    parser.add_argument("--codec", type=Path, required=True, help="folder made by lab.train.codec")
    parser.add_argument("--start", type=Path, help="folder of a talker, such as out/built-in/tiny")
    parser.add_argument(
        "--rate", type=float, help=f"peak learning rate [{RATE}; {FURTHER_RATE} with --start]"
    )
    parser.add_argument("--device", default="cpu", help="device of torch [%(default)s]")
    parser.add_argument("--rows", type=int, default=1, help="factor for the rows of a step [%(default)s]")
    add_arguments(parser, steps=Settings().total_steps)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    rate = options.rate or (RATE if options.start is None else FURTHER_RATE)
    settings = Settings(total_steps=options.steps, peak_learning_rate=rate)
    if options.start is not None:
        settings = further(settings)
    trainer = Trainer(
        many_times(settings, options.rows),
        options.segments,
        options.test,
        options.codec,
        options.out,
        start=options.start,
        device=options.device,
    )
    sys.stderr.write(f"{trainer.questions} questions, from step {trainer.step}\n")
    return run_until_stopped(trainer, options.steps, options.minutes)


if __name__ == "__main__":
    sys.exit(main())
