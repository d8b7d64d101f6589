"""Joins the built-in models' graphs and published weights, which are in two packages, and separates them.

python -m lab.tools.built_in whole out/built-in     lay each model out in one folder, to train from
python -m lab.tools.built_in place out/ship/tiny    replace a built-in model of this checkout by that folder
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from antiphon.models.catalog import builtin_folder, weights_folder
from antiphon.models.source import BUILTIN

PUBLISHED: Final = ("model.safetensors", "mimi.safetensors", "mimi_config.json")
"""The files of the package of weights; the server has the others."""
SERVER, WEIGHTS = Path("server/antiphon/assets"), Path("weights/antiphon_weights")


def whole(out: Path) -> None:
    """Lay out every built-in model under ``out`` as links: published weights and graphs in one folder."""
    for name in BUILTIN:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        for root in (builtin_folder(name), weights_folder(name)):
            for path in root.iterdir() if root is not None and root.is_dir() else ():
                link = folder / path.name
                link.unlink(missing_ok=True)
                link.symlink_to(path.resolve())


def place(shipped: Path, root: Path = Path()) -> None:
    """Replace a built-in model of the checkout at ``root`` by the folder ``shipped`` of the same name."""
    server, weights = root / SERVER / shipped.name, root / WEIGHTS / shipped.name
    for folder in (server, weights):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for path in shipped.iterdir():
        if path.is_dir():
            shutil.copytree(path, server / path.name)
        else:
            shutil.copyfile(path, (weights if path.name in PUBLISHED else server) / path.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("whole", "place"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    if options.verb == "place" and options.folder.name not in BUILTIN:
        parser.error(f"{options.folder} is not named like a built-in model: {', '.join(BUILTIN)}")
    (whole if options.verb == "whole" else place)(options.folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
