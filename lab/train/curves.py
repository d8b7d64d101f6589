"""Draws the training curves of the small models as one picture, from the logs of their trainers.

Usage: python -m lab.train.curves --logs out/train --out docs/models/tiny-training.png
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon_client.plot import load_matplotlib

LOSSES: Final[Mapping[str, Mapping[str, str]]] = {
    "codec": {"envelope": "1 - correlation of envelopes", "spectral": "spectra"},
    "talker": {"text": "text", "audio": "codes", "words": "words heard (CTC)"},
    "listener": {"text": "text", "pauses": "pauses"},
    "reader": {"text": "text", "audio": "codes"},
}
"""By folder, the parts of the loss in the picture, and their labels."""
SCORES: Final = ("accuracy", "word_error", "understood")
"""Scores, measured at intervals on data outside of the training."""


def read_log(path: Path) -> list[dict[str, float]]:
    """Return the lines of a trainer's log, one for each step: of a repeated step, the later line."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for _, line in sorted({int(line["step"]): line for line in lines}.items())]


def series(lines: list[dict[str, float]], name: str) -> NDArray[np.float64]:
    """Return the steps and values ``[2, N]`` of the lines that have ``name``."""
    return (
        np.array([(line["step"], line[name]) for line in lines if name in line], np.float64).reshape(-1, 2).T
    )


def draw(logs: Path, out: Path) -> list[str]:
    """Draw a panel for each trainer that has a log in ``logs``; returns their names.

    Raises:
        SystemExit: there is no log at all.
        MissingExtraError: matplotlib is not installed.
    """
    found = [name for name in LOSSES if (logs / name / "log.jsonl").is_file()]
    if not found:
        raise SystemExit(f"no log in {logs}; training writes them: python -m lab.train --help")
    lines_of_two = (len(found) + 1) // 2
    columns = min(2, len(found))
    figure = load_matplotlib().Figure(figsize=(5.5 * columns, 4 * lines_of_two), layout="constrained")
    axes: Any = figure.subplots(lines_of_two, columns, squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, found, strict=False):
        lines = read_log(logs / name / "log.jsonl")
        for part, label in LOSSES[name].items():
            steps, values = series(lines, part)
            if steps.size:
                axis.plot(steps, values, label=label, linewidth=1)
        axis.set(title=f"the {name}", xlabel="step", ylabel="loss", yscale="log")
        handles, labels = axis.get_legend_handles_labels()
        for score in SCORES:
            steps, values = series(lines, score)
            if steps.size:
                right = axis.twinx()
                handles += right.plot(steps, values, "k.-", label=f"held-out {score.replace('_', ' ')}")
                labels.append(f"held-out {score.replace('_', ' ')}")
                right.set(ylim=(0, 1))
        axis.legend(
            handles, labels, fontsize=8, ncols=len(labels), loc="upper center", bbox_to_anchor=(0.5, -0.14)
        )
        axis.grid(alpha=0.3)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    return found


def main(argv: list[str] | None = None) -> int:
    """Draw the curves, and print the names of the trainers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=Path, default=Path("out/train"), help="[%(default)s]")
    parser.add_argument("--out", type=Path, required=True, help="a PNG")
    options = parser.parse_args(argv)
    names = draw(options.logs, options.out)
    sys.stderr.write(f"{options.out}: {', '.join(names)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
