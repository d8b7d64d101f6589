"""Make the built-in models anew: a spoken corpus, a codec, a talker, a recogniser, a synthesiser.

Usage: python -m lab.train [--out out/train] [--codec-minutes 60] [--talker-minutes 120] \\
           [--listener-minutes 90] [--reader-minutes 60] [--rhvoice]

Every stage keeps what it has made and goes on where it was, so a run that was stopped is simply run again.
The codec trains on from the one that is shipped; everything else starts from nothing but seeds.
The last stages write the models' folders; `python -m lab.train.evaluate` measures them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from lab.train import (
    asr_trainer,
    codec,
    corpus,
    questions,
    readings,
    segments,
    ship,
    talker,
    tts_trainer,
    word_times,
)
from lab.train.rhvoice import require_rhvoice
from lab.train.synthetic_voices import require_held_out_speakers, require_speakers

Stage = tuple[str, Callable[[list[str]], int], list[str]]


def stages(
    out: Path,
    codec_minutes: float,
    talker_minutes: float,
    listener_minutes: float,
    reader_minutes: float,
    *,
    rhvoice: bool = False,
) -> list[Stage]:
    """What is done, in order: a title, a stage's main function and its arguments."""

    def at(name: str) -> str:
        return str(out / name)

    return [
        *_talker_stages(at, codec_minutes, talker_minutes, rhvoice=rhvoice),
        *_listener_stages(at, listener_minutes),
        *_reader_stages(at, reader_minutes),
    ]


def _talker_stages(
    at: Callable[[str], str], codec_minutes: float, talker_minutes: float, *, rhvoice: bool
) -> list[Stage]:
    """The talker, and the codec that all models share."""
    codec_folder, more_voices = at("codec"), ["--rhvoice"] if rhvoice else []
    asked, heard = at("questions"), at("segments")
    return [
        ("speech for the codec", corpus.main, ["--shards", "100", "--out", at("codec-speech")]),
        ("held-out speech", corpus.main, ["--held-out", "--shards", "1", "--out", at("codec-test")]),
        ("questions", questions.main, ["--shards", "140", *more_voices, "--out", asked]),
        ("held-out questions", questions.main, ["--held-out", "--shards", "4", "--out", f"{asked}-test"]),
        (
            "the codec",
            codec.main,
            ["--speech", at("codec-speech"), "--out", codec_folder, "--minutes", str(codec_minutes)],
        ),
        ("codes", segments.main, ["--questions", asked, "--codec", codec_folder, "--out", heard]),
        (
            "held-out codes",
            segments.main,
            ["--held-out", "--questions", f"{asked}-test", "--codec", codec_folder, "--out", f"{heard}-test"],
        ),
        (
            "the talker",
            talker.main,
            [
                *("--segments", heard, "--test", f"{heard}-test/0000.npz", "--codec", codec_folder),
                *("--out", at("talker"), "--minutes", str(talker_minutes)),
            ],
        ),
        (
            "the model's folder",
            ship.main,
            ["--talker", at("talker"), "--codec", codec_folder, "--out", at("tiny")],
        ),
    ]


def _listener_stages(at: Callable[[str], str], minutes: float) -> list[Stage]:
    """The recogniser, which starts with the talker's ear and hears what that heard."""
    asked, heard, times = at("questions"), at("segments"), at("word-times")
    return [
        ("word times", word_times.main, ["--questions", asked, "--out", times]),
        (
            "held-out word times",
            word_times.main,
            ["--questions", f"{asked}-test", "--out", f"{times}-test"],
        ),
        (
            "the recogniser",
            asr_trainer.main,
            [
                *("--segments", heard, "--times", times, "--codec", at("codec")),
                *("--test", f"{heard}-test/0000.npz", "--test-times", f"{times}-test/0000.npz"),
                *("--start", at("talker/best"), "--out", at("listener"), "--minutes", str(minutes)),
            ],
        ),
        (
            "the recogniser's folder",
            ship.main,
            ["--listener", at("listener"), "--beside", at("tiny"), "--out", at("tiny-stt")],
        ),
    ]


def _reader_stages(at: Callable[[str], str], minutes: float) -> list[Stage]:
    """The synthesiser."""
    return [
        (
            "readings",
            readings.main,
            ["--shards", "8", "--codec", at("codec"), "--out", at("readings")],
        ),
        (
            "the synthesiser",
            tts_trainer.main,
            [
                *("--readings", at("readings"), "--codec", at("codec"), "--out", at("reader")),
                *("--minutes", str(minutes)),
            ],
        ),
        (
            "the synthesiser's folder",
            ship.main,
            ["--reader", at("reader"), "--beside", at("tiny"), "--out", at("tiny-tts")],
        ),
    ]


def main(argv: list[str] | None = None) -> int:
    """Run every stage until one fails or is stopped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/train"), help="[%(default)s]")
    parser.add_argument("--codec-minutes", type=float, default=60, help="[%(default)s]")
    parser.add_argument("--talker-minutes", type=float, default=120, help="[%(default)s]")
    parser.add_argument("--listener-minutes", type=float, default=90, help="[%(default)s]")
    parser.add_argument("--reader-minutes", type=float, default=60, help="[%(default)s]")
    parser.add_argument("--rhvoice", action="store_true", help="let RHVoice ask too, where it is installed")
    options = parser.parse_args(argv)
    require_speakers()
    require_held_out_speakers()
    if options.rhvoice:
        require_rhvoice()
    plan = stages(
        options.out,
        options.codec_minutes,
        options.talker_minutes,
        options.listener_minutes,
        options.reader_minutes,
        rhvoice=options.rhvoice,
    )
    for number, (title, stage, arguments) in enumerate(plan, 1):
        sys.stderr.write(f"==> {number} of {len(plan)}: {title}\n")
        code = stage(arguments)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
