"""Train the tiny Mimi on the spoken corpus, in upstream's own modules and file format.

Usage: python -m lab.train.codec --speech out/train/codec-speech --out out/train/codec --minutes 120

Stops after ``--minutes`` or on Ctrl-C or SIGTERM, saves every few minutes, and resumes when run again. Once
models are trained on its codes, only its decoder may still change:

  python -m lab.train.codec --speech out/train/codec-speech --own out/train/own-speech --rate 3e-4 \\
      --steps 3000 --start out/train/codec --out out/train/decoder

With --own half of the decoder's material is the models' output, in their own voices and undisturbed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from moshi.models import loaders
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from lab.train.augment import disturb
from lab.train.loop import Schedule, add_arguments, run_until_stopped
from lab.train.losses import EnvelopeLoss, SpectralLoss
from lab.train.shards import shards_in

FRAME_SAMPLES = 1920
CONTEXT_FRAMES = 25
"""Window of the codec's transformers in frames. Longer ones have no gain (STOI 0.861 at 250 frames, 0.862 at
25), cost time, and would make codes depend on much earlier audio."""

DECODING_PARTS = ("upsample", "decoder_transformer", "decoder")

SCHEDULE: Final = Schedule(
    peak_learning_rate=4e-4, warm_up_steps=200, total_steps=14_000, final_share=0.02, weight_decay=1e-3
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run; written next to its checkpoints."""

    batch: int = 8
    frames: int = 15
    schedule: Schedule = SCHEDULE
    envelope_weight: float = 3.0
    waveform_weight: float = 2.0
    quantizer_dropout: float = 0.15
    own_share: float = 0.5
    """of the excerpts, if there is speech of the models' own"""
    seed: int = 1


class Speech:
    """A corpus with all shards in memory as int16, from which disturbed excerpts are drawn."""

    def __init__(self, folder: Path, made_by: str = "corpus") -> None:
        shards = [np.load(path) for path in shards_in(folder)]
        if not shards:
            raise SystemExit(
                f"no shards in {folder}; make them with: python -m lab.train.{made_by} --out {folder}"
            )
        self.pcm = [shard["pcm"] for shard in shards]
        self.hours = sum(pcm.size for pcm in self.pcm) / 24_000 / 3600

    def excerpt(
        self, rng: np.random.Generator, samples: int, grid: int = 1
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return float32 ``[samples]`` from any point on a grid of samples, also across utterance borders."""
        pcm = self.pcm[rng.integers(len(self.pcm))]
        start = grid * rng.integers((pcm.size - samples) // grid)
        excerpt: np.ndarray[Any, np.dtype[np.float32]] = (
            pcm[start : start + samples].astype(np.float32) / 32768
        )
        return excerpt

    def batch(self, rng: np.random.Generator, size: int, samples: int) -> Tensor:
        """Return a batch ``[size, 1, samples]``, each excerpt disturbed differently."""
        rows = [disturb(rng, self.excerpt(rng, samples), self.excerpt(rng, samples)) for _ in range(size)]
        return torch.from_numpy(np.stack(rows))[:, None]


def load_mimi(folder: Path) -> Any:
    """Return upstream's Mimi from ``mimi.safetensors`` and ``mimi_config.json``, ready to train."""
    config = json.loads((folder / "mimi_config.json").read_text())
    mimi = loaders.get_mimi(folder / "mimi.safetensors", config, num_codebooks=config["quantizer"]["n_q"])
    mimi.train()
    return mimi


class Trainer:
    """The codec in training: the model, its optimiser and its position in the schedule.

    With ``own`` speech, only the decoder is trained: encoder and quantizer, and therefore every code, are
    unchanged.
    """

    def __init__(
        self, settings: Settings, speech: Speech, start: Path, out: Path, own: Speech | None = None
    ) -> None:
        self.settings, self.speech, self.own, self.out = settings, speech, own, out
        self.state_path = out / "trainer.pt"
        self.mimi = load_mimi(out if self.state_path.exists() else start)
        if own is not None:
            self.mimi.eval()
            for name, parameter in self.mimi.named_parameters():
                parameter.requires_grad_(name.startswith(DECODING_PARTS))
        trained = [p for p in self.mimi.parameters() if p.requires_grad]
        schedule = settings.schedule
        self.optimizer = torch.optim.AdamW(
            trained, schedule.peak_learning_rate, betas=(0.8, 0.99), weight_decay=schedule.weight_decay
        )
        self.spectral, self.envelope = SpectralLoss(), EnvelopeLoss()
        self.step, self.config = 0, json.loads((start / "mimi_config.json").read_text())
        self.config["transformer"]["context"] = CONTEXT_FRAMES
        if self.state_path.exists():
            state = torch.load(self.state_path, weights_only=True)
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]
        out.mkdir(parents=True, exist_ok=True)

    def train_step(self) -> dict[str, float]:
        """Train on one batch; returns the parts of its loss."""
        settings = self.settings
        rng = np.random.default_rng((settings.seed, self.step))
        for group in self.optimizer.param_groups:
            group["lr"] = settings.schedule.learning_rate(self.step)
        target = self._target(rng)
        decoded, penalty = self._round_trip(rng, target)
        spectral = self.spectral(decoded[:, 0], target[:, 0])
        envelope = self.envelope(decoded[:, 0], target[:, 0])
        waveform = functional.l1_loss(decoded, target)
        loss = spectral + settings.envelope_weight * envelope + settings.waveform_weight * waveform
        if penalty is not None:
            loss = loss + penalty
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.mimi.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        parts = {"spectral": spectral, "envelope": envelope, "waveform": waveform}
        return {name: part.item() for name, part in parts.items()}

    def _target(self, rng: np.random.Generator) -> Tensor:
        """``[batch, 1, samples]``."""
        settings, samples = self.settings, self.settings.frames * FRAME_SAMPLES
        if self.own is None:
            return self.speech.batch(rng, settings.batch, samples)
        count = round(settings.batch * settings.own_share)
        # On the grid of frames, as the models output it: a word then always has about the same codes.
        own = np.stack([self.own.excerpt(rng, samples, FRAME_SAMPLES) for _ in range(count)])
        others = self.speech.batch(rng, settings.batch - count, samples)
        return torch.cat([torch.from_numpy(own)[:, None], others])

    def _round_trip(self, rng: np.random.Generator, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """``target [B, 1, samples]`` through the codec, and the quantizer's penalty."""
        if self.own is not None:
            with torch.no_grad():
                codes = self.mimi.encode(target)
            return self.mimi.decode(codes).float(), None
        levels = self.mimi.quantizer.total_codebooks
        is_dropped = rng.random() < self.settings.quantizer_dropout
        self.mimi.set_num_codebooks(int(rng.integers(1, levels)) if is_dropped else levels)
        result = self.mimi(target)
        return result.x.float(), result.penalty

    def notes(self) -> dict[str, float]:
        """Return no notes: the codec is judged separately, see lab.train.codec_quality."""
        return {}

    def save(self) -> None:
        """Save model and trainer so that a kill at any moment leaves a complete pair."""
        self.mimi.set_num_codebooks(self.mimi.quantizer.total_codebooks)
        weights = {name: tensor.contiguous() for name, tensor in self.mimi.state_dict().items()}
        save_file(weights, self.out / "mimi.part")
        torch.save({"optimizer": self.optimizer.state_dict(), "step": self.step}, self.out / "trainer.part")
        (self.out / "mimi_config.json").write_text(json.dumps(self.config, indent=2) + "\n")
        (self.out / "mimi.part").replace(self.out / "mimi.safetensors")
        (self.out / "trainer.part").replace(self.state_path)


def main(argv: list[str] | None = None) -> int:
    """Train, or resume training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speech", type=Path, required=True, help="folder of shards from lab.train.corpus")
    parser.add_argument(
        "--start", type=Path, default=Path("weights/antiphon_weights/tiny"), help="weights to start from"
    )
    parser.add_argument(
        "--own", type=Path, help="folder made by lab.train.own_speech: train only the decoder, on this too"
    )
    parser.add_argument(
        "--rate", type=float, default=SCHEDULE.peak_learning_rate, help="peak learning rate [%(default)s]"
    )
    add_arguments(parser, steps=SCHEDULE.total_steps)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    settings = Settings(
        schedule=replace(SCHEDULE, total_steps=options.steps, peak_learning_rate=options.rate)
    )
    torch.manual_seed(settings.seed)
    speech = Speech(options.speech)
    own = None if options.own is None else Speech(options.own, "own_speech")
    for some in (speech, own) if own else (speech,):
        sys.stderr.write(f"{some.hours:.1f} hours of speech\n")
    trainer = Trainer(settings, speech, options.start, options.out, own)
    return run_until_stopped(trainer, options.steps, options.minutes, log_every=50)


if __name__ == "__main__":
    sys.exit(main())
