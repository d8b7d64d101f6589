"""Compares a model in each recipe of the onnx target with its float32 graphs, by the measures of the gate.

The limits of the gate do not apply.

    python -m lab.bench.recipe_quality                          int8 and int4, built-in duplex, built-in clips
    python -m lab.bench.recipe_quality --model echo RECORDING...    a codec, on recorded speech
    python -m lab.bench.recipe_quality --model ./float --recipe mine.toml

The model has float32 graphs (antiphon quantize --target onnx --recipe float32); in the other forms their
weights are rounded. Changes of a recipe to the export itself, ``int8_ring_bytes`` and
``int8_convolution_positions``, are not applied: rings and the encoder's convolutions remain float32.
Columns are the measures of docs/gate.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from antiphon.errors import AntiphonError
from antiphon.models.catalog import load_checkpoint
from antiphon_quantize.gate import judge
from antiphon_quantize.gate_run import Material, Side
from lab.bench.harness import tell
from tests.support.rounded import rounded

COLUMNS = (
    "text kl",
    "text agreement",
    "semantic agreement",
    "codec semantic codes",
    "codec codes",
    "codec si-sdr",
    "codec stoi loss",
    "codec mel loss",
    "speed ratio",
    "size ratio",
)


def measure(model: str, recipes: Sequence[str], material: Material, folder: Path) -> str:
    """Return a table of every recipe compared with float32; rounded models are written to ``folder``.

    Raises:
        AntiphonError: the model has no float32 graphs, or recordings cannot be read.
    """
    whole = load_checkpoint(model)
    lines: list[str] = []
    for name in recipes:
        target = folder / f"{whole.spec.name}-{Path(name).stem}"
        shutil.rmtree(target, ignore_errors=True)
        small = rounded(whole, name, target)
        verdict = judge(Side(whole, "onnx"), Side(small, "onnx"), (), material)
        found = {row.measure.name: row.measure.value for row in verdict.rows}
        columns = [column for column in COLUMNS if found.get(column) is not None]
        if not lines:
            lines += [f"| recipe | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
        lines.append(f"| {name} | {' | '.join(f'{found[column]:.4g}' for column in columns)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="lab.bench.recipe_quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recordings", nargs="*", type=Path, metavar="RECORDING")
    parser.add_argument("--model", default="tiny", help="with float32 graphs [%(default)s]")
    parser.add_argument("--recipe", action="append", help="[int8 and int4]")
    parser.add_argument("--frames", type=int, default=300, help="of each recording [%(default)s]")
    parser.add_argument("--turns", type=int, default=40, help="timed steps of each model [%(default)s]")
    parser.add_argument("--out", type=Path, default=Path("out/bench/graphs"), help="[%(default)s]")
    options = parser.parse_args(argv)
    material = Material(recordings=options.recordings, frames=options.frames, turns=options.turns)
    try:
        print(measure(options.model, options.recipe or ["int8", "int4"], material, options.out))
    except AntiphonError as error:
        tell(f"lab.bench.recipe_quality: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
