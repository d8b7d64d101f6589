"""Makes the built-in models from scratch: a spoken corpus, a codec, a talker, a recogniser, a synthesiser.

Usage: python -m lab.train [--out out/train] [--codec-minutes 60] [--decoder-minutes 30] \\
           [--talker-minutes 120] [--listener-minutes 90] [--reader-minutes 60] \\
           [--start out/built-in [--natural out/material]] [--rhvoice] [--pico] [--threads 2] \\
           [--small]

Every stage keeps its results and resumes, so a stopped run is simply run again; a paused run (SIGSTOP,
SIGCONT) loses none of its minutes. The codec is trained further from the shipped one, everything else starts
only from seeds; with --start talker, recogniser and synthesiser are trained further from the models in that
folder, whose codec is kept. With --natural in addition, only recogniser and synthesiser are trained further,
on natural voices; without it the synthesiser learns two voices of flite. --small reduces the whole run to two
minutes. The last stages write the models' folders; `python -m lab.train.evaluate` measures them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.train.questions import add_further, further_ones
from lab.train.recipe import NATURAL, SMALL, Minutes, Recipe, Scale
from lab.train.synthetic_voices import require_held_out_speakers, require_speakers


def main(argv: list[str] | None = None) -> int:
    """Run every stage until one fails or is stopped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/train"), help="[%(default)s]")
    parser.add_argument("--codec-minutes", type=float, default=60, help="[%(default)s]")
    parser.add_argument("--decoder-minutes", type=float, default=30, help="[%(default)s]")
    parser.add_argument("--talker-minutes", type=float, default=120, help="[%(default)s]")
    parser.add_argument("--listener-minutes", type=float, default=90, help="[%(default)s]")
    parser.add_argument("--reader-minutes", type=float, default=60, help="[%(default)s]")
    parser.add_argument("--start", type=Path, help="folder of tiny, tiny-stt and tiny-tts to continue from")
    parser.add_argument("--natural", type=Path, help="folder of lab.train.material; needs --start")
    add_further(parser)
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--small", action="store_true", help="a trial of the whole in two minutes")
    options = parser.parse_args(argv)
    if options.natural and not options.start:
        parser.error("--natural continues from trained models: name their folder with --start")
    require_speakers()
    require_held_out_speakers()
    further = further_ones(options)
    minutes = Minutes(
        options.codec_minutes,
        options.decoder_minutes,
        options.talker_minutes,
        options.listener_minutes,
        options.reader_minutes,
    )
    scale = SMALL if options.small else NATURAL if options.natural else Scale()
    plan = Recipe(
        options.out, minutes, scale, options.start, further, options.threads, options.natural
    ).stages()
    for number, (title, stage, arguments) in enumerate(plan, 1):
        sys.stderr.write(f"==> {number} of {len(plan)}: {title}\n")
        code = stage(arguments)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
