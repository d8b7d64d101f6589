"""Build the images twice, and run compose.yaml with them: calls, rolling restarts, a kill, the shutdown.

    make stack                          as root; ARGS="--torch --cuda" builds the large images too
    python -m lab.tools.stack --again   with the images of the last run

Writes a page of figures and the log to OUT/stack.md, and a bill of materials of each image next to it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.tools.stack import bill, page, scenario
from lab.tools.stack.container_engine import ContainerEngine, StackError, prepare
from lab.tools.stack.images import LARGE, RECIPES, BuiltImage, base, build_twice, mounted, room_for
from tests.support.stack.composefile import ROOT

SLOTS = "4"
GIGABYTES = 6
TORCH_GIGABYTES = 15
CUDA_GIGABYTES = 32
"""Free gigabytes for a build with its copies: temporarily five times an image's size."""

FIRST_ANSWERS = (("antiphon:cpu", "--model=echo"), ("antiphon:cpu", "--model=tiny"))
TORCH_ANSWERS = (("antiphon:cpu-torch", "--model=tiny", "--backend=torch"),)
"""Images with options of ``antiphon serve``, whose time from ``podman run`` to the first sound is
measured."""


def main(argv: Sequence[str]) -> int:
    """Run all steps; returns 1 if a step failed."""
    parser = argparse.ArgumentParser(prog="make stack", description="Build the images and run the stack.")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "stack", help="[%(default)s]")
    parser.add_argument("--again", action="store_true", help="run with the images of the last run")
    parser.add_argument(
        "--backend",
        default="auto",
        help="of the workers; null on a machine too busy for models [%(default)s]",
    )
    parser.add_argument(
        "--hand-overs", type=int, default=10, help="calls that change their worker, one by one [%(default)s]"
    )
    parser.add_argument("--torch", action="store_true", help="build antiphon:cpu-torch too, once")
    parser.add_argument(
        "--cuda", action="store_true", help="build antiphon:cuda too, once, on Debian's Python"
    )
    args = parser.parse_args(argv)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    values = {
        "ANTIPHON_TLS": str(out / "tls.pem"),
        "ANTIPHON_HAND_OVER": str(out / "hand-over.pem"),
        "ANTIPHON_BACKEND": args.backend,
        "DUPLEX_SLOTS": SLOTS,
        "ECHO_SLOTS": SLOTS,
    }
    try:
        needed = CUDA_GIGABYTES if args.cuda else TORCH_GIGABYTES if args.torch else GIGABYTES
        room_for(out, GIGABYTES if args.again else needed)
        engine = prepare(out / "engine", values)
        for file in ("tls.pem", "hand-over.pem"):
            _certificate(out / file)
        steps = scenario.StackLog()
        steps.say(f"begun at load {os.getloadavg()[0]:.1f}")
        built: list[BuiltImage] = []
        if not args.again:
            names = ["antiphon:cpu-torch"] * args.torch + ["antiphon:cuda"] * args.cuda
            built = _images(engine, steps, out, names)
        for image, *options in FIRST_ANSWERS + TORCH_ANSWERS * args.torch:
            ready_s, answered_s = scenario.first_answer(engine, image, out, *options)
            steps.say(
                f"{' '.join((image, *options))}: ready {ready_s:.1f} s and first sound {answered_s:.1f} s "
                "after podman run"
            )
        scenario.run(engine, steps, scenario.StackPlan(args.backend, out / "hand-over.pem", args.hand_overs))
    except StackError as error:
        print(f"make stack: {error}", file=sys.stderr)
        return 1
    (out / "stack.md").write_text(page.page(built, steps.lines))
    print(f"==> {out / 'stack.md'}")
    return 0


def _images(
    engine: ContainerEngine, steps: scenario.StackLog, out: Path, large: Sequence[str]
) -> list[BuiltImage]:
    epoch_s = int(engine.run("git", "log", "-1", "--format=%ct"))
    steps.say(f"base: Debian and Python in {base(engine, epoch_s):.0f} s")
    wanted = [(recipe, True) for recipe in RECIPES]
    wanted += [(recipe, False) for recipe in LARGE if recipe.name in large]
    built = []
    for recipe, twice in wanted:
        image = build_twice(engine, recipe, epoch_s, twice=twice)
        with mounted(engine, image.name) as root:
            found = bill.packages(root)
        file = out / f"{image.name.replace(':', '-')}.spdx.json"
        bill.write(file, bill.bill(image.name, found, epoch_s))
        engine.run(str(engine.work / "venv" / "bin" / "pyspdxtools"), "-i", str(file))
        built.append(replace(image, packages=len(found)))
        steps.say(
            f"{image.name}: {image.size_bytes / 1e6:.0f} MB in {image.build_s:.0f} s, {len(found)} packages"
        )
    return built


def _certificate(file: Path) -> None:
    subject = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    subprocess.run(
        ["openssl", "req", "-x509", *subject, "-subj", "/CN=localhost", "-keyout", file, "-out", file],
        check=True,
        capture_output=True,
    )
    file.chmod(0o644)  # HAProxy reads it as user 99, a worker as 10001


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
