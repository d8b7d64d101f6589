"""Train the small synthesiser: an LM in Kyutai's TTS format, in upstream's own modules, on spoken texts.

Usage: python -m lab.train.tts_trainer --readings out/train/readings --codec out/train/codec \\
           --out out/train/reader --minutes 40

It stops and resumes like lab.train.talker. New readings are used as they appear.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from moshi.conditioners.base import ConditionAttributes, TensorCondition
from moshi.models import loaders
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from antiphon.models.conditioning import CONDITION, MAX_SPEAKERS
from antiphon.models.script import ScriptRules
from lab.train.beginnings import start_from_codec
from lab.train.codec import load_mimi
from lab.train.loop import (
    Course,
    Schedule,
    add_arguments,
    checkpoint_in,
    fast_arithmetic,
    run_until_stopped,
    write_lm,
)
from lab.train.readings import NATURAL_VOICES, VOICES, Reading, read_readings
from lab.train.recital import recite
from lab.train.scripts import Cues, cues, entries_of, reader_spec
from lab.train.segments import CodeArray
from lab.train.sequences import ZERO, delay
from lab.train.shards import shards_in
from lab.train.talker_tokenizer import PAD, TalkerTokenizer

SPEAKER_FRAMES: Final = 2
SPEAKER_WIDTH: Final = 16
GUIDANCES: Final = ("1.0", "2.0", "3.0")
MODEL_ID: Final = {"sig": "tiny", "epoch": 1}
NOT_LM: Final = ("model_type", "model_id", "tts_config")
RATE, FURTHER_RATE = 1.5e-3, 5e-4
"""Peaks of the learning rate: from scratch, and from a trained reader."""
SCHEDULE: Final = Schedule(peak_learning_rate=RATE, warm_up_steps=150, total_steps=4000)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run."""

    short_batch: int
    long_batch: int
    long_share: float = 0.4
    """Share of the batches; both kinds have about the same number of steps."""
    text_weight: float = 0.5
    quiet_frames_share: float = 0.15
    """Share of the frames of silence that train the voice."""
    nobody_share: float = 0.05
    """Share of the texts without a voice's file."""
    forgotten_codes: float = 0.05
    averaged_steps: int = 200
    """The average of the weights over about this number of steps is judged and shipped."""
    judge_every_steps: int = 500
    seed: int = 8


def lm_config(text_card: int) -> dict[str, Any]:
    """Return the synthesiser's ``config.json``, with upstream's names."""
    return {
        "model_type": "tts",
        "dim": 256,
        "text_card": text_card,
        "existing_text_padding_id": PAD,
        "n_q": 8,
        "dep_q": 8,
        "card": 512,
        "num_heads": 8,
        "num_layers": 4,
        "hidden_scale": 4,
        "causal": True,
        "layer_scale": None,
        "context": 125,
        "max_period": 10000,
        "gating": "silu",
        "norm": "rms_norm_f32",
        "positional_embedding": "rope",
        "cross_attention": True,
        "demux_second_stream": True,
        "depformer_dim": 128,
        "depformer_dim_feedforward": 512,
        "depformer_num_heads": 4,
        "depformer_num_layers": 2,
        "depformer_layer_scale": None,
        "depformer_multi_linear": True,
        "depformer_max_period": 10000,
        "depformer_gating": "silu",
        "depformer_pos_emb": "none",
        "depformer_weights_per_step": True,
        "depformer_weights_per_step_schedule": [0, 1, 2, 3, 4, 4, 5, 5],
        "delays": [0, 0, 1, 1, 1, 1, 1, 1, 1],
        "conditioners": {
            CONDITION: {"type": "tensor", "tensor": {"dim": SPEAKER_WIDTH}},
            "cfg": {
                "type": "lut",
                "lut": {
                    "n_bins": len(GUIDANCES),
                    "dim": 8,
                    "tokenizer": "noop",
                    "possible_values": list(GUIDANCES),
                },
            },
        },
        "fuser": {
            "cross_attention_pos_emb": True,
            "cross_attention_pos_emb_scale": 1,
            "sum": ["cfg"],
            "prepend": [],
            "cross": [CONDITION],
        },
        "tts_config": {"audio_delay": 0.64, "second_stream_ahead": 2, "speaker_frames": SPEAKER_FRAMES},
        "model_id": MODEL_ID,
    }


def voice_embeddings() -> dict[str, Tensor]:
    """Return the voices in the form of their files, ``[1, width, frames]``: arbitrary constant vectors."""
    return {
        name: torch.randn(
            1, SPEAKER_WIDTH, SPEAKER_FRAMES, generator=torch.Generator().manual_seed(1 + place)
        )
        for place, name in enumerate((*VOICES, *NATURAL_VOICES))
    }


def condition(voice: Tensor | None, guidance: str | None) -> ConditionAttributes:
    """Return the result of upstream's ``TTSModel.make_condition_attributes`` for a voice and a guidance."""
    positions = MAX_SPEAKERS * SPEAKER_FRAMES
    source, mask = torch.zeros(1, positions, SPEAKER_WIDTH), torch.zeros(1, positions, dtype=torch.bool)
    if voice is not None:
        source[:, :SPEAKER_FRAMES], mask[:, :SPEAKER_FRAMES] = voice.transpose(1, 2), True
    return ConditionAttributes({"cfg": guidance}, {CONDITION: TensorCondition(source, mask)})


@dataclass(frozen=True, slots=True)
class Scripted:
    """A reading with its script: codes ``[8, frames]``, the text of each step, and the voice."""

    codes: CodeArray
    cues: Cues
    voice: str

    @classmethod
    def of(cls, reading: Reading, spec: Any, rules: ScriptRules, tokenizer: TalkerTokenizer) -> Scripted:
        """Return a reading with its script as the server would run it."""
        steps = reading.codes.shape[1] + rules.first_sound
        entries = entries_of(reading.text, spec, tokenizer)
        return cls(reading.codes, cues(entries, reading.starts, rules, steps), reading.voice)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of readings: ``tokens`` int64 ``[B, 9, S]`` as input, before delays; ``said`` and ``counts`` as
    in a script.

    ``is_loud`` bool ``[B, S]``: in this step some codebook has something other than silence.
    """

    tokens: Tensor
    said: Tensor
    counts: Tensor
    is_loud: Tensor


def collate(items: Sequence[Scripted], silence: CodeArray, rules: ScriptRules) -> Batch:
    """Stack readings into a batch; shorter ones are padded with values that are not trained."""
    steps = max(item.cues.fed.size for item in items)
    tokens = np.full((len(items), 9, steps), ZERO, np.int64)
    tokens[:, 0] = PAD
    said = np.full((len(items), steps), PAD, np.int64)
    counts, is_loud = np.zeros((2, len(items), steps), np.bool_)
    for row, item in enumerate(items):
        size, frames = item.cues.fed.size, item.codes.shape[1]
        tokens[row, 0, :size] = item.cues.fed
        tokens[row, 1:, rules.audio_delay : rules.audio_delay + frames] = item.codes
        said[row, :size], counts[row, :size] = item.cues.said, item.cues.counts
        loud = (item.codes != silence[:, None]).any(0)
        for late in (0, rules.acoustic_delay):
            at = rules.audio_delay + late
            is_loud[row, at : at + frames] |= loud
    return Batch(*map(torch.from_numpy, (tokens, said, counts, is_loud)))


def losses(
    lm: Any, batch: Batch, conditions: Any, rng: np.random.Generator, settings: Settings
) -> dict[str, Tensor]:
    """Return the parts of the loss, unweighted."""
    initial = lm._get_initial_token().expand(batch.tokens.shape[0], -1, -1)
    delayed = torch.cat([initial, delay(lm.delays, batch.tokens, initial)], dim=2)
    inputs = delayed[:, :, :-1].clone()
    hidden_codes = torch.from_numpy(rng.random((inputs.shape[0], inputs.shape[2])) < settings.forgotten_codes)
    inputs[:, 1:] = torch.where(hidden_codes[:, None], ZERO, inputs[:, 1:])
    hidden, text_logits = lm.forward_text(
        inputs, lm.fuser.get_sum(conditions), lm.fuser.get_cross(conditions)
    )
    targets = delayed[:, :, 1:]
    text = functional.cross_entropy(text_logits[:, 0].float().transpose(1, 2), batch.said, reduction="none")
    has_sound = ((targets[:, 1:] >= 0) & (targets[:, 1:] < lm.card)).all(1)
    share = torch.where(batch.is_loud, 1.0, settings.quiet_frames_share)
    chosen = has_sound & (torch.from_numpy(rng.random(share.shape)) < share)
    picked = targets.transpose(1, 2)[chosen][:, :, None]
    logits = lm.forward_depformer_training(picked, hidden[chosen][:, None])[:, :, 0].float()
    return {
        "text": (text * batch.counts).sum() / batch.counts.sum().clamp(min=1),
        "audio": functional.cross_entropy(logits.flatten(0, 1), picked[:, 1:, 0].flatten()),
    }


class Trainer:
    """The synthesiser in training: the model, its position in the schedule, and its data."""

    def __init__(
        self,
        settings: Settings,
        schedule: Schedule,
        readings: Path,
        codec: Path,
        out: Path,
        start: Path | None = None,
    ) -> None:
        self.settings, self.folder, self.out = settings, readings, out
        out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(settings.seed)
        self.tokenizer = TalkerTokenizer.made(out / "tokenizer.model", is_forgiving=True)
        self.config = lm_config(self.tokenizer.size)
        self.spec = reader_spec(self.config)
        self.rules = ScriptRules.of(self.spec)
        arguments = deepcopy({key: value for key, value in self.config.items() if key not in NOT_LM})
        self.lm: Any = loaders.get_moshi_lm(None, lm_kwargs=arguments, device="cpu", dtype=torch.float32)
        self.mimi = load_mimi(codec)
        self.mimi.eval()
        if start is None:
            start_from_codec(self.lm, self.mimi, (1.0,))
        else:
            weights = load_file(checkpoint_in(start) / "model.safetensors")
            self.lm.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        self.course = Course(self.lm, schedule, out, settings.averaged_steps)
        self.shards: dict[str, list[Scripted]] = {}
        self.look_for_readings()

    @property
    def step(self) -> int:
        """The number of steps taken so far."""
        return self.course.step

    @property
    def readings(self) -> int:
        """The number of readings in the training data."""
        return sum(len(shard) for shard in self.shards.values())

    def look_for_readings(self) -> None:
        """Add the shards that have appeared since the last look."""
        for path in shards_in(self.folder):
            if path.name not in self.shards:
                self.shards[path.name] = [
                    Scripted.of(one, self.spec, self.rules, self.tokenizer) for one in read_readings(path)
                ]
        if not self.shards:
            raise SystemExit(
                f"no readings in {self.folder}; make them with: python -m lab.train.readings --help"
            )
        items = sorted(
            (item for shard in self.shards.values() for item in shard), key=lambda item: item.cues.fed.size
        )
        known, embeddings = {item.voice for item in items}, voice_embeddings()
        self.voices = {name: embeddings[name] for name in embeddings if name in known}
        middle = items[-1].cues.fed.size // 2
        self.short = [item for item in items if item.cues.fed.size <= middle]
        self.long = [item for item in items if item.cues.fed.size > middle]
        self.silence = items[0].codes[:, -1]

    def _draw(self, rng: np.random.Generator) -> list[Scripted]:
        """A batch of similar lengths: neighbours in the order of length."""
        is_long = rng.random() < self.settings.long_share
        pool = self.long if is_long or not self.short else self.short
        size = min(len(pool), self.settings.long_batch if is_long else self.settings.short_batch)
        spread = min(len(pool), 8 * size)
        first = int(rng.integers(len(pool) - spread + 1))
        return [pool[first + int(index)] for index in rng.choice(spread, size, replace=False)]

    def train_step(self) -> dict[str, float]:
        """Train on one batch; returns the parts of its loss."""
        settings = self.settings
        rng = np.random.default_rng((settings.seed, self.step))
        drawn = self._draw(rng)
        batch = collate(drawn, self.silence, self.rules)
        attributes = [
            condition(
                None if rng.random() < settings.nobody_share else self.voices[one.voice],
                (None, *GUIDANCES)[rng.integers(len(GUIDANCES) + 1)],
            )
            for one in drawn
        ]
        with fast_arithmetic():
            conditions = self.lm.condition_provider.prepare_and_provide(attributes)
            parts = losses(self.lm, batch, conditions, rng, settings)
        self.course.update(parts["audio"] + settings.text_weight * parts["text"])
        return {name: part.item() for name, part in parts.items()}

    def notes(self) -> dict[str, float]:
        """Return values for the log at intervals: the number of readings, and how well each voice is
        understood; the best checkpoint is kept."""
        notes: dict[str, float] = {}
        if self.step % 200 == 0:
            self.look_for_readings()
            notes["readings"] = self.readings
        if self.step % self.settings.judge_every_steps == 0:
            judged = self.course.judged
            understood = {
                name: recite(judged, self.mimi, self.spec, self.tokenizer, condition(voice, "2.0"), self.step)
                for name, voice in self.voices.items()
            }
            notes |= {f"understood_{name}": round(share, 4) for name, share in understood.items()}
            if self.course.is_best(sum(understood.values()) / len(understood)):
                write_lm(judged, self.config, self.out / "best")
        return notes

    def save(self) -> None:
        """Write everything needed to resume."""
        self.course.save()
        write_lm(self.course.judged, self.config, self.out / "last")
        voices = self.out / "voices"
        voices.mkdir(exist_ok=True)
        for voice, embedding in self.voices.items():
            name = f"{voice}.{MODEL_ID['sig']}@{MODEL_ID['epoch']}.safetensors"
            save_file({CONDITION: embedding.contiguous()}, voices / name)
            (voices / name).chmod(0o644)  # save_file makes it unreadable for others


def main(argv: list[str] | None = None) -> int:
    """Train, or resume training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--readings", type=Path, required=True, help="folder made by lab.train.readings")
    parser.add_argument("--codec", type=Path, required=True, help="folder made by lab.train.codec")
    parser.add_argument("--start", type=Path, help="folder of a reader, such as out/built-in/tiny-tts")
    parser.add_argument(
        "--rate", type=float, help=f"peak learning rate [{RATE}; {FURTHER_RATE} with --start]"
    )
    parser.add_argument(
        "--batches",
        type=int,
        nargs=2,
        default=(24, 8),
        metavar=("SHORT", "LONG"),
        help="readings in a batch of short and in one of long ones [24 8]",
    )
    add_arguments(parser, steps=SCHEDULE.total_steps)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    rate = options.rate or (RATE if options.start is None else FURTHER_RATE)
    schedule = replace(SCHEDULE, total_steps=options.steps, peak_learning_rate=rate)
    settings = Settings(*options.batches)
    trainer = Trainer(settings, schedule, options.readings, options.codec, options.out, start=options.start)
    sys.stderr.write(f"{trainer.readings} readings, from step {trainer.step}\n")
    return run_until_stopped(trainer, options.steps, options.minutes)


if __name__ == "__main__":
    sys.exit(main())
