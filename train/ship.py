"""Put the trained talker and its codec into one folder, in the published layout, with a manifest.

Usage: python -m train.ship --talker out/train/talker --codec out/train/codec \\
           --out server/antiphon/assets/tiny

Then `python tools/ship_graphs.py FOLDER --recipe int8` gives it its ONNX graphs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import describe
from antiphon.models.manifest import MANIFEST_NAME, write_manifest
from tools.small_models import published_names

DESCRIPTION = (
    "A small talker about sums, counting, colours, sounds, days and months, trained on synthetic voices."
)
SAMPLING: Final = {"temp": 0.3, "temp_text": 0.0, "top_k": 50, "top_k_text": 25}
"""Text is the likeliest; a little chance keeps the voice from droning."""


def _bfloat16(source: Path, target: Path) -> None:
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(source).items()}
    save_file(published_names(tensors), target)
    target.chmod(0o644)


def ship(talker: Path, codec: Path, out: Path) -> None:
    """Write the folder ``out``; the talker is the best of its training, else the last.

    Raises:
        SystemExit: training has not written a checkpoint yet.
    """
    chosen = next((talker / kind for kind in ("best", "last") if (talker / kind).is_dir()), None)
    if chosen is None:
        raise SystemExit(f"no checkpoint in {talker}; make one with: python -m train.talker --help")
    out.mkdir(parents=True, exist_ok=True)
    _bfloat16(chosen / "model.safetensors", out / "model.safetensors")
    _bfloat16(codec / "mimi.safetensors", out / "mimi.safetensors")
    shutil.copyfile(codec / "mimi_config.json", out / "mimi_config.json")
    shutil.copyfile(talker / "tokenizer.model", out / "tokenizer.model")
    config: dict[str, Any] = json.loads((chosen / "config.json").read_text())
    config |= {
        "model_type": "moshi",
        "moshi_name": "model.safetensors",
        "mimi_name": "mimi.safetensors",
        "mimi_config_name": "mimi_config.json",
        "tokenizer_name": "tokenizer.model",
        "lm_gen_config": SAMPLING,
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / MANIFEST_NAME).unlink(missing_ok=True)
    manifest = describe(
        load_checkpoint(str(out)), name="tiny", description=DESCRIPTION, license_name="Apache-2.0"
    )
    write_manifest(manifest, out / MANIFEST_NAME)


def main(argv: list[str] | None = None) -> int:
    """Write the folder and say how large it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--talker", type=Path, required=True, help="folder of train.talker")
    parser.add_argument("--codec", type=Path, required=True, help="folder of train.codec")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    ship(options.talker, options.codec, options.out)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    sys.stderr.write(f"{options.out}: {size / 1e6:.1f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
