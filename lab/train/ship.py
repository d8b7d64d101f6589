"""Put a trained model and its codec into one folder, in the published layout, with a manifest.

Usage: python -m lab.train.ship --talker out/train/talker --codec out/train/codec \\
           --out out/ship/tiny
       python -m lab.train.ship --listener out/train/listener --shared-codec out/ship/tiny \\
           --out out/ship/tiny-stt
       python -m lab.train.ship --reader out/train/reader --shared-codec out/ship/tiny \\
           --out out/ship/tiny-tts

With ``--shared-codec`` a folder refers to the codec of another one and has none of its own. Then `python
lab/tools/ship_graphs.py FOLDER --recipe int8` gives it its ONNX graphs, and `python -m lab.tools.built_in
place FOLDER` puts it into the packages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import describe
from antiphon.models.manifest import MANIFEST_NAME, write_manifest
from lab.train.loop import checkpoint_in
from tests.support.small_models import published_names

LM_NAME, TOKENIZER_NAME = "model.safetensors", "tokenizer.model"
CODEC_NAMES: Final = {"mimi_name": "mimi.safetensors", "mimi_config_name": "mimi_config.json"}
SPEAKING: Final = {"temp": 0.3, "temp_text": 0.0, "top_k": 50, "top_k_text": 25}
"""Text is sampled greedily; a little randomness prevents a monotonous voice."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The properties of a kind of shipped model: its names, its description, its sampling, and sample
    questions."""

    name: str
    model_type: str
    description: str
    sampling: dict[str, float]
    examples: tuple[str, ...] = ()
    voices: Mapping[str, str] = field(default_factory=dict)


KINDS: Final = {
    "talker": Kind(
        "tiny",
        "moshi",
        "A small talker about sums, counting, colours, sounds, days and months, trained on synthetic voices.",
        SPEAKING,
        (
            "What is your name?",
            "What is five plus four?",
            "What colour is snow?",
            "What does a cow say?",
            "What colour is a tomato?",
            "What is two plus two?",
        ),
    ),
    "listener": Kind(
        "tiny-stt",
        "stt",
        "A small recogniser of questions about sums, counting, colours, sounds, days and months, trained on "
        "synthetic voices.",
        {"temp": 0.0, "temp_text": 0.0},
    ),
    "reader": Kind(
        "tiny-tts",
        "tts",
        "A small synthesiser that reads the words of sums, counting, colours, sounds, days and months.",
        SPEAKING,
        ("the sky is blue", "five plus four is nine", "after monday comes tuesday"),
        {
            "slt": "Sarah, American",
            "thomas": "Thomas, Scottish",
            "vera": "Vera, American",
            "will": "Will, American",
        },
    ),
}


def _bfloat16(source: Path, target: Path) -> None:
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(source).items()}
    save_file(published_names(tensors), target)
    target.chmod(0o644)


def ship(kind: str, trained: Path, codec: Path, out: Path, *, is_shared: bool = False) -> None:
    """Write the folder ``out``; the model is the best checkpoint of its training, else the last.

    ``codec`` is the folder of the codec: that of its trainer, or with ``is_shared`` an already shipped
    one, referenced by relative path.

    Raises:
        SystemExit: training has not written a checkpoint yet.
    """
    chosen = checkpoint_in(trained)
    what = KINDS[kind]
    out.mkdir(parents=True, exist_ok=True)
    _bfloat16(chosen / LM_NAME, out / LM_NAME)
    shutil.copyfile(trained / TOKENIZER_NAME, out / TOKENIZER_NAME)
    if (trained / "voices").is_dir():
        shutil.copytree(trained / "voices", out / "voices", dirs_exist_ok=True)
    config: dict[str, Any] = json.loads((chosen / "config.json").read_text())
    config |= {
        "model_type": what.model_type,
        "moshi_name": LM_NAME,
        "tokenizer_name": TOKENIZER_NAME,
        "lm_gen_config": what.sampling,
        **_codec(codec, out, is_shared=is_shared),
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / MANIFEST_NAME).unlink(missing_ok=True)
    manifest = describe(
        load_checkpoint(str(out)),
        name=what.name,
        description=what.description,
        license_name="Apache-2.0",
        examples=what.examples,
    )
    voices = {name: title for name, title in what.voices.items() if any((out / "voices").glob(f"{name}.*"))}
    write_manifest(replace(manifest, voices=voices), out / MANIFEST_NAME)


def _codec(codec: Path, out: Path, *, is_shared: bool) -> dict[str, str]:
    """The configuration's entries for the codec, which is copied unless ``is_shared``."""
    if is_shared:
        return {key: os.path.relpath(codec / name, out) for key, name in CODEC_NAMES.items()}
    _bfloat16(codec / CODEC_NAMES["mimi_name"], out / CODEC_NAMES["mimi_name"])
    shutil.copyfile(codec / CODEC_NAMES["mimi_config_name"], out / CODEC_NAMES["mimi_config_name"])
    return dict(CODEC_NAMES)


def main(argv: list[str] | None = None) -> int:
    """Write the folder and print its size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    trained = parser.add_mutually_exclusive_group(required=True)
    for kind in KINDS:
        trained.add_argument(f"--{kind}", type=Path, help=f"folder of a trained {kind}")
    codec = parser.add_mutually_exclusive_group(required=True)
    codec.add_argument("--codec", type=Path, help="folder of lab.train.codec, which is copied")
    codec.add_argument("--shared-codec", type=Path, help="a folder shipped before, whose codec is used")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    kind = next(kind for kind in KINDS if getattr(options, kind))
    ship(
        kind,
        getattr(options, kind),
        options.shared_codec or options.codec,
        options.out,
        is_shared=options.shared_codec is not None,
    )
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    sys.stderr.write(f"{options.out}: {size / 1e6:.1f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
