"""Train the small recogniser: an LM in Kyutai's STT format, in upstream's own modules, on spoken questions.

Usage: python -m lab.train.asr_trainer --segments out/train/segments --times out/train/word-times \\
           --test out/train/segments-test/0000.npz --test-times out/train/word-times-test/0000.npz \\
           --codec out/train/codec --start out/train/talker/best --out out/train/listener --minutes 90

With ``--start`` it begins with the input layers of a trained talker, or with all of such a recogniser. With
``--stretches`` half of the input are stretches of lab.train.stretches, used as they appear. It stops and
resumes like lab.train.talker. With several folders of segments half of the composed passages are of the
first; with --remember the model keeps to what --start writes for these, and forgets less. With several tests,
the mean score selects the best checkpoint.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import torch
from moshi.models import loaders
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from antiphon.models.transcript import PREFIX_FRAMES
from lab.train.beginnings import nearest_codes, start_from_codec, start_from_talkers_ear
from lab.train.codec import load_mimi
from lab.train.dictation import dictate
from lab.train.loop import (
    Course,
    Schedule,
    add_arguments,
    checkpoint_in,
    fast_arithmetic,
    run_until_stopped,
    write_lm,
)
from lab.train.passages import (
    DELAY_FRAMES,
    FRAME_RATE,
    PAUSES_S,
    UNKNOWN,
    Line,
    Passage,
    PassageComposer,
    Room,
)
from lab.train.quick_lm import read
from lab.train.segments import FRAME_SAMPLES, CodeArray, encode, read_segments
from lab.train.sequences import ZERO, misheard
from lab.train.shards import shards_in
from lab.train.stretches import read_stretches
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer
from lab.train.word_times import check_fit, read_word_times, starts_of

COLD_FRAMES: Final = 26
NEAR_CODES: Final = 8
RATE: Final = 8e-4
"""Peak of the learning rate; for further training half of it is better (--rate)."""
SCHEDULE: Final = Schedule(peak_learning_rate=RATE, warm_up_steps=100, total_steps=7000)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run."""

    batch: int = 8
    frames: int = 250
    padding_weight: float = 0.5
    silence_weight: float = 1.0
    """weight of a padding token during speech outside the domain: a larger one transcribes less of it

    With 2.5 a recogniser also wrote nothing for 33 of 112 questions in unknown phrasings.
    """
    word_weight: float = 4.0
    pause_weight: float = 0.3
    averaged_steps: int = 500
    """the mean of the weights over about this number of steps is judged and shipped: it has fewer errors"""
    forgotten_text: float = 0.25
    """share of earlier written words that are hidden, so that the audio decides

    With half of them hidden a model does not know which it has written: 28 of 1,700 words were repeated.
    """
    misheard: float = 0.3
    """largest share of a passage's codes replaced by similar-sounding ones, as in an unknown voice"""
    stretches_share: float = 0.5
    """share of the batches drawn from stretches encoded whole, if there are any"""
    first_share: float = 0.5
    """share of the composed passages from the first folder of segments, if there are several"""
    remembered: float = 1.0
    """weight of the distance from what the start writes for these passages, with --remember"""
    judge_every_steps: int = 500
    seed: int = 6


def lm_config(text_card: int) -> dict[str, Any]:
    """Return the recogniser's ``config.json``, with upstream's names."""
    return {
        "model_type": "stt",
        "dim": 320,
        "text_card": text_card,
        "existing_text_padding_id": PAD,
        "n_q": 8,
        "dep_q": 0,
        "card": 512,
        "num_heads": 8,
        "num_layers": 5,
        "hidden_scale": 4,
        "causal": True,
        "layer_scale": None,
        "context": 125,
        "max_period": 10000,
        "gating": "silu",
        "norm": "rms_norm_f32",
        "positional_embedding": "rope",
        "depformer_multi_linear": True,
        "extra_heads_num_heads": len(PAUSES_S),
        "extra_heads_dim": 6,
        "delays": [0] * 9,
        "stt_config": {
            "audio_delay_seconds": DELAY_FRAMES / FRAME_RATE,
            "audio_silence_prefix_seconds": PREFIX_FRAMES / FRAME_RATE,
        },
    }


NOT_LM = ("model_type", "stt_config")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of passages: ``codes`` int64 ``[B, 9, T]``, text first; ``pauses`` int64 ``[B, heads, T]`` by
    audio frame.

    ``is_wordless`` bool ``[B, T]``: where no text is expected for speech. ``is_known`` bool ``[B]``: which
    passages are of the first folder.
    """

    codes: Tensor
    pauses: Tensor
    is_wordless: Tensor
    is_known: Tensor


def collate(passages: list[Passage], is_known: list[bool]) -> Batch:
    """Stack passages into a batch."""
    codes = np.stack([np.concatenate([one.text[None], one.codes]) for one in passages])
    return Batch(
        torch.from_numpy(codes.astype(np.int64)),
        torch.from_numpy(np.stack([one.pauses for one in passages])),
        torch.from_numpy(np.stack([one.is_wordless for one in passages])),
        torch.tensor(is_known),
    )


def forgetful(inputs: Tensor, rng: np.random.Generator, share_of_text: float) -> Tensor:
    """Return ``inputs [B, K, S]`` with some upper codebooks, some frames, and some written words hidden."""
    inputs = inputs.clone()
    rows, steps = inputs.shape[0], inputs.shape[2]
    for row in range(rows):
        if rng.random() < 0.35:
            inputs[row, 1 + int(rng.integers(2, 8)) :] = ZERO
    gone = rng.random((rows, steps)) < 0.03
    gone[:, 1:] |= gone[:, :-1].copy()
    unheard = torch.from_numpy(gone)
    inputs[:, 1:] = torch.where(unheard[:, None], ZERO, inputs[:, 1:])
    unread = torch.from_numpy(rng.random((rows, steps)) < share_of_text)
    is_word = (inputs[:, 0] != PAD) & (inputs[:, 0] != EPAD)
    inputs[:, 0] = torch.where(unread & is_word, ZERO, inputs[:, 0])
    return inputs


def losses(
    lm: Any, batch: Batch, near: Tensor, rng: np.random.Generator, settings: Settings, earlier: Any = None
) -> dict[str, Tensor]:
    """Return the parts of the loss, unweighted; ``near`` are the codes that may replace each code.

    At step s the input has the audio of frame s - 1, and the output the text of frame s. "forgotten" is the
    distance from what the model ``earlier`` writes for undisturbed known passages.
    """
    initial = lm._get_initial_token().expand(batch.codes.shape[0], -1, -1)
    clean = torch.cat([initial, batch.codes], dim=2)[:, :, :-1]
    heard = misheard(clean, near, rng, settings.misheard)
    made = read(lm, forgetful(heard, rng, settings.forgotten_text))
    text = batch.codes[:, 0]
    padding = torch.where(batch.is_wordless, settings.silence_weight, settings.padding_weight)
    weight = torch.where(text == PAD, padding, settings.word_weight)
    weight = torch.where(text == EPAD, 1.5, weight)
    text_loss = functional.cross_entropy(made.text_logits.float().transpose(1, 2), text, reduction="none")
    pauses = torch.stack([head(made.last[:, 1:]) for head in lm.extra_heads], dim=1).float()
    known, forgotten = batch.is_known, torch.zeros(())
    if earlier is not None and known.any():
        with torch.no_grad():
            written = read(earlier, clean[known]).text_logits.float().log_softmax(-1)
        own = made.text_logits[known].float().log_softmax(-1)
        distance = functional.kl_div(own, written, reduction="none", log_target=True).sum(-1)
        forgotten = (distance * weight[known]).sum() / weight.sum()
    return {
        "text": (text_loss * weight).sum() / weight.sum(),
        "forgotten": forgotten,
        "pauses": functional.cross_entropy(
            pauses.flatten(0, 2), batch.pauses[:, :, :-1].flatten(), ignore_index=UNKNOWN
        ),
    }


def read_rooms(segments: Path, times: Path) -> tuple[list[Room], list[CodeArray]]:
    """Return the rooms of a shard, and its quiet strips.

    Questions whose words could not be timed are excluded; speech outside the domain is included, without
    words.

    Raises:
        ValueError: the times are of other segments.
    """
    scenes, quiet = read_segments(segments)
    told = read_word_times(times)
    check_fit([segment for scene in scenes for segment in scene.segments], told, times)
    spoken, rooms = iter(told), list[Room]()
    for scene in scenes:
        starts = starts_of(scene.segments, [next(spoken) for _ in scene.segments])
        lines = tuple(
            Line(one, when)
            for one, when in zip(scene.segments, starts, strict=True)
            if when or not one.question
        )
        if lines:
            rooms.append(Room(scene.strip, lines))
    return rooms, list(quiet)


class Trainer:
    """The recogniser in training: the model, its position in the schedule, and its data."""

    def __init__(
        self,
        settings: Settings,
        schedule: Schedule,
        segments: Sequence[tuple[Path, Path]],
        tests: Sequence[tuple[Path, Path]],
        codec: Path,
        out: Path,
        start: Path | None = None,
        stretches: Path | None = None,
        *,
        remember: bool = False,
    ) -> None:
        """``segments`` are pairs of folders, of codes and of word times; ``tests`` pairs of such files."""
        self.settings, self.folders, self.out = settings, segments, out
        self.stretches_folder, self.stretches = stretches, dict[Path, list[Passage]]()
        out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(settings.seed)
        self.tokenizer = TalkerTokenizer.made(out / "tokenizer.model")
        self.config = lm_config(self.tokenizer.size)
        arguments = {key: value for key, value in self.config.items() if key not in NOT_LM}
        self.lm: Any = loaders.get_moshi_lm(None, lm_kwargs=arguments, device="cpu", dtype=torch.float32)
        mimi = load_mimi(codec)
        mimi.eval()
        self._begin(mimi, start)
        self.earlier: Any = deepcopy(self.lm).eval() if remember else None
        self.near = nearest_codes(mimi, NEAR_CODES)
        self.course = Course(self.lm, schedule, out, settings.averaged_steps)
        self.cold = encode(mimi, np.zeros((1, COLD_FRAMES * FRAME_SAMPLES), np.float32))[0]
        self.tests = {
            codes.parent.name: read_rooms(codes, times)[0]
            for codes, times in tests
            if codes.exists() and times.exists()
        }
        self.shards: dict[Path, tuple[list[Room], list[CodeArray]]] = {}
        self.look_for_segments()

    def _begin(self, mimi: Any, start: Path | None) -> None:
        for head in self.lm.extra_heads:
            nn.init.zeros_(head.weight)
        if start is None:
            start_from_codec(self.lm, mimi, (1.0,))
            return
        start = checkpoint_in(start)
        weights = load_file(start / "model.safetensors")
        if json.loads((start / "config.json").read_text()).get("model_type") == "stt":
            self.lm.load_state_dict(weights)
        else:
            start_from_talkers_ear(self.lm, weights, heard_from=8)

    @property
    def step(self) -> int:
        """The number of steps taken so far."""
        return self.course.step

    @property
    def questions(self) -> int:
        """The number of questions in the training data."""
        return sum(len(room.lines) for rooms, _ in self.shards.values() for room in rooms)

    def look_for_segments(self) -> None:
        """Add the shards that have appeared since the last look, if their words are timed."""
        for codes, times in self.folders:
            for path in shards_in(codes):
                if path not in self.shards and (times / path.name).exists():
                    self.shards[path] = read_rooms(path, times / path.name)
        if not self.shards:
            places = " or ".join(f"in {codes} with their times in {times}" for codes, times in self.folders)
            raise SystemExit(
                f"no segments {places}; make them with: "
                "python -m lab.train.segments --help and python -m lab.train.word_times --help"
            )
        first = [one for path, one in self.shards.items() if path.parent == self.folders[0][0]]
        further = [one for path, one in self.shards.items() if path.parent != self.folders[0][0]]
        self.first, self.further = self._composer(first or further), self._composer(further or first)
        for path in [] if self.stretches_folder is None else shards_in(self.stretches_folder):
            if path not in self.stretches:
                self.stretches[path] = [one.passage(self.tokenizer) for one in read_stretches(path)]
        self.passages = [one for some in self.stretches.values() for one in some]

    def _composer(self, shards: Sequence[tuple[list[Room], list[CodeArray]]]) -> PassageComposer:
        rooms = [room for some, _ in shards for room in some]
        quiet = [strip for _, strips in shards for strip in strips]
        return PassageComposer(rooms, quiet, self.cold, self.tokenizer, self.settings.frames)

    def draw(self, rng: np.random.Generator) -> tuple[Passage, bool]:
        """Draw a stretch that was encoded whole, or a passage composed of codes; also returns whether it is
        of the first folder."""
        if self.passages and rng.random() < self.settings.stretches_share:
            return self.passages[int(rng.integers(len(self.passages)))], False
        is_first = len(self.folders) == 1 or rng.random() < self.settings.first_share
        return (self.first if is_first else self.further).draw(rng), is_first

    def train_step(self) -> dict[str, float]:
        """Train on one batch; returns the parts of its loss."""
        settings = self.settings
        rng = np.random.default_rng((settings.seed, self.step))
        drawn, is_first = zip(*(self.draw(rng) for _ in range(settings.batch)), strict=True)
        batch = collate(list(drawn), list(is_first))
        with fast_arithmetic():
            parts = losses(self.lm, batch, self.near, rng, settings, self.earlier)
        self.course.update(
            parts["text"] + settings.pause_weight * parts["pauses"] + settings.remembered * parts["forgotten"]
        )
        return {name: part.item() for name, part in parts.items()}

    def notes(self) -> dict[str, float]:
        """Return values for the log at intervals: the amount of data, and scores of the tests; the best
        checkpoint is kept."""
        notes: dict[str, float] = {}
        if self.step % 200 == 0:
            self.look_for_segments()
            notes |= {"questions": self.questions, "stretches": len(self.passages)}
        if self.step % self.settings.judge_every_steps == 0 and self.tests:
            notes |= self._judged()
        return notes

    def _judged(self) -> dict[str, float]:
        """Scores of every test, by folder if there are several; the best checkpoint is kept."""
        notes, scores = dict[str, float](), list[float]()
        for folder, rooms in self.tests.items():
            got = dictate(self.course.judged, rooms, self.tokenizer)
            scores.append(got.score)
            suffix = f" of {folder}" if len(self.tests) > 1 else ""
            notes |= {
                f"{name}{suffix}": round(value, 4) for name, value in asdict(got).items() if value is not None
            }
        if self.course.is_best(fmean(scores)):
            write_lm(self.course.judged, self.config, self.out / "best")
        return notes

    def save(self) -> None:
        """Write everything needed to resume."""
        self.course.save()
        write_lm(self.course.judged, self.config, self.out / "last")


def main(argv: list[str] | None = None) -> int:
    """Train, or resume training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--segments", type=Path, nargs="+", required=True, help="folders of lab.train.segments"
    )
    parser.add_argument(
        "--times", type=Path, nargs="+", required=True, help="folder of lab.train.word_times for each"
    )
    parser.add_argument("--stretches", type=Path, help="folder made by lab.train.stretches")
    parser.add_argument("--test", type=Path, nargs="+", required=True, help="shards of held-out segments")
    parser.add_argument("--test-times", type=Path, nargs="+", required=True, help="word times of each")
    parser.add_argument("--codec", type=Path, required=True, help="folder made by lab.train.codec")
    parser.add_argument(
        "--start", type=Path, help="checkpoint of a talker (its input layers) or a recogniser to begin with"
    )
    parser.add_argument(
        "--remember",
        action="store_true",
        help="stay near the transcripts of --start for the first folder's passages",
    )
    parser.add_argument("--rate", type=float, default=RATE, help="peak learning rate [%(default)s]")
    add_arguments(parser, steps=SCHEDULE.total_steps)
    options = parser.parse_args(argv)
    if options.remember and not options.start:
        parser.error("--remember keeps to a recogniser: name its folder with --start")
    torch.set_num_threads(options.threads)
    trainer = Trainer(
        Settings(),
        replace(SCHEDULE, total_steps=options.steps, peak_learning_rate=options.rate),
        list(zip(options.segments, options.times, strict=True)),
        list(zip(options.test, options.test_times, strict=True)),
        options.codec,
        options.out,
        options.start,
        options.stretches,
        remember=options.remember,
    )
    sys.stderr.write(
        f"{trainer.questions} questions, {len(trainer.passages)} stretches, from step {trainer.step}\n"
    )
    return run_until_stopped(trainer, options.steps, options.minutes)


if __name__ == "__main__":
    sys.exit(main())
