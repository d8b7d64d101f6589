"""Runs upstream's ``moshi.server``, its own code unchanged, on a CPU with a local checkpoint.

    python -m lab.bench.upstream_main CHECKPOINT PORT

Three things it calls do not work here, and are replaced from outside before it starts:

* ``torch.cuda.synchronize``, which its warm-up calls on every device, does nothing.
* ``CheckpointInfo.from_hf_repo`` would take local files named by strings for files of a hub repository: it
  gets them as ``Path`` objects.
* ``CheckpointInfo.get_moshi`` gets float32, which upstream's command line cannot ask for, so that both
  servers compute in the same precision.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from moshi.models.loaders import CheckpointInfo


def main(argv: list[str]) -> None:
    """Serve until terminated."""
    folder, port = Path(argv[0]), argv[1]
    prepare(folder)
    sys.argv = ["moshi.server", "--host", "127.0.0.1", "--port", port, "--device", "cpu", "--static", "none"]
    runpy.run_module("moshi.server", run_name="moshi.server")


def prepare(folder: Path) -> None:
    """Put the three replacements in place, for the checkpoint in ``folder``."""
    config = json.loads((folder / "config.json").read_text())
    from_hf_repo, get_moshi = CheckpointInfo.from_hf_repo, CheckpointInfo.get_moshi

    def from_folder(*_: Any, **__: Any) -> CheckpointInfo:
        return from_hf_repo(
            "local",
            moshi_weights=folder / config["moshi_name"],
            mimi_weights=folder / config["mimi_name"],
            tokenizer=folder / config["tokenizer_name"],
            config_path=folder / "config.json",
            mimi_config_path=folder / config["mimi_config_name"],
        )

    def get_float32(self: CheckpointInfo, *arguments: Any, **options: Any) -> Any:
        return get_moshi(self, *arguments, **{**options, "dtype": torch.float32})

    # setattr, because a type checker is right that nobody should do this.
    setattr(torch.cuda, "synchronize", lambda *_: None)  # noqa: B010
    setattr(CheckpointInfo, "from_hf_repo", staticmethod(from_folder))  # noqa: B010
    setattr(CheckpointInfo, "get_moshi", get_float32)  # noqa: B010


if __name__ == "__main__":
    main(sys.argv[1:])
