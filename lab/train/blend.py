"""Blends the weights of a model and of its further trained version: new skills, with less forgetting.

Usage: python -m lab.train.blend --start out/built-in/tiny-stt --trained out/train/listener \\
           --share 0.5 --out out/train/listener-half

After Wortsman et al. 2022, "Robust fine-tuning of zero-shot models". Its output folder is one of a trainer's,
for lab.train.ship; with --rounded its matrices are rounded as by lab.train.rounding. Folders of
lab.train.codec are blended too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import torch
from moshi.models import loaders
from safetensors.torch import load_file, save_file
from torch import Tensor

from lab.train.asr_trainer import NOT_LM
from lab.train.codec import load_mimi
from lab.train.loop import checkpoint_in, write_lm
from lab.train.rounding import round_in_blocks

CODEC_NAME: Final = "mimi.safetensors"
PAUSE_HEADS: Final = "extra_heads."
VOICE: Final = ("depformer", "linears.")
"""Beginnings of the names of weights that make a talker's sound from its words."""


def weights_of(lm: Any, folder: Path) -> dict[str, Tensor]:
    """Return the weights in ``folder``, published or of a trainer, by the names of upstream's modules."""
    published = load_file(checkpoint_in(folder) / "model.safetensors")
    lm.load_state_dict({name: tensor.float() for name, tensor in published.items()})
    return {name: tensor.clone() for name, tensor in lm.state_dict().items()}


def blended(
    start: dict[str, Tensor], trained: dict[str, Tensor], share: float, voice_share: float | None = None
) -> dict[str, Tensor]:
    """Return the blend of each tensor: ``share`` of the trained weights and the rest of the initial ones;
    ``voice_share`` of those in :data:`VOICE`, if it is given.

    Pause heads are the trained ones: blended heads detect a pause later.
    """

    def share_of(name: str) -> float:
        if name.startswith(PAUSE_HEADS):
            return 1.0
        return share if voice_share is None or not name.startswith(VOICE) else voice_share

    return {name: torch.lerp(start[name], tensor, share_of(name)) for name, tensor in trained.items()}


def blend(
    start: Path,
    trained: Path,
    share: float,
    out: Path,
    *,
    is_rounded: bool,
    voice_share: float | None = None,
) -> None:
    """Write the folder ``out`` with the blend of two models of one shape, a talker or a recogniser.

    Raises:
        SystemExit: one of them has no checkpoint.
        RuntimeError: their tensors differ in names or shapes.
    """
    config: dict[str, Any] = json.loads((checkpoint_in(trained) / "config.json").read_text())
    arguments = {key: value for key, value in config.items() if key not in NOT_LM}
    lm: Any = loaders.get_moshi_lm(None, lm_kwargs=arguments, device="cpu", dtype=torch.float32)
    lm.load_state_dict(blended(weights_of(lm, start), weights_of(lm, trained), share, voice_share))
    if is_rounded:
        round_in_blocks(lm)
    write_lm(lm, config, out / "last")
    shutil.copyfile(trained / "tokenizer.model", out / "tokenizer.model")


def blend_codecs(start: Path, trained: Path, share: float, out: Path) -> None:
    """Write the folder ``out`` with the blend of two codecs of one shape.

    Raises:
        RuntimeError: their tensors differ in names or shapes.
    """
    mimi = load_mimi(trained)
    first, second = load_mimi(start).state_dict(), mimi.state_dict()
    mimi.load_state_dict(blended(first, second, share))
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in mimi.state_dict().items()}
    save_file(weights, out / CODEC_NAME)
    shutil.copyfile(trained / "mimi_config.json", out / "mimi_config.json")


def main(argv: list[str] | None = None) -> int:
    """Run the command line: blend two folders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--start", type=Path, required=True, help="folder of the model that training began with"
    )
    parser.add_argument("--trained", type=Path, required=True, help="folder of its trainer")
    parser.add_argument("--share", type=float, default=0.5, help="of what is trained, 0 to 1 [%(default)s]")
    parser.add_argument("--voice-share", type=float, help="the same of a talker's depformer [--share]")
    parser.add_argument("--rounded", action="store_true", help="round to 4 bits (lab.train.rounding)")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    for name, share in (("share", options.share), ("voice-share", options.voice_share or 0.0)):
        if not 0 <= share <= 1:
            parser.error(f"--{name} {share} is not between 0 and 1")
    if (options.trained / CODEC_NAME).exists() and not (options.trained / "model.safetensors").exists():
        if options.voice_share is not None:
            parser.error("--voice-share is for talkers, and these are codecs")
        blend_codecs(options.start, options.trained, options.share, options.out)
        return 0
    blend(
        options.start,
        options.trained,
        options.share,
        options.out,
        is_rounded=options.rounded,
        voice_share=options.voice_share,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
