"""``antiphon doctor``: what of this machine a server uses, what is missing, and what will run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from antiphon.config import ServerConfig
from antiphon.models.builtin import DEFAULT_MODEL
from antiphon.option import Parser, options
from antiphon_quantize.bench.doctor_checks import (
    DoctorLine,
    DoctorState,
    check_cores,
    check_extras,
    check_files,
    check_gpus,
    check_libopus,
    check_memory,
    check_port,
    check_python,
    check_sound,
)
from antiphon_quantize.bench.doctor_speed import check_default

EXAMPLES = """\
examples:
  antiphon doctor                            everything, with some seconds of the default model
  antiphon doctor --model ./moshiko-int8 --port 9000
  antiphon doctor --no-speed                 without running a model

A line with "MISSING" needs the remedy below it before a server starts, and makes the exit code 1. A line with
"note" says what would be better.
"""


def main(argv: Sequence[str]) -> int:
    """Print a line for each finding, with its remedy; 1 when something needed is missing.

    Raises:
        ConfigError: an option that cannot be used.
    """
    asked = _parse(argv)
    findings: list[DoctorLine] = []
    for finding in look(asked):
        findings.append(finding)
        print(finding, flush=True)  # noqa: T201
    missing = [finding.name for finding in findings if finding.state is DoctorState.MISSING]
    if missing:
        print(f"\nnot ready: {', '.join(missing)}")  # noqa: T201
        return 1
    print(f"\nready: {serve_command(asked)}")  # noqa: T201
    return 0


def look(asked: argparse.Namespace) -> Iterator[DoctorLine]:
    """One finding after the other, the slow one last."""
    checks: tuple[Callable[[], DoctorLine], ...] = (
        check_python, check_libopus, check_cores, check_memory, check_gpus, check_files, check_sound
    )  # fmt: skip
    for check in checks:
        yield check()
    yield from check_extras()
    yield check_port(asked.host, asked.port)
    yield check_default(asked.model, is_timed=asked.is_timed)


def serve_command(asked: argparse.Namespace) -> str:
    """The command that serves what was looked at."""
    known = options(ServerConfig)
    words = [
        f" --{name} {getattr(asked, name)}"
        for name in ("host", "port")
        if getattr(asked, name) != known[name].default
    ]
    model = "" if asked.model == DEFAULT_MODEL else f" --model {asked.model}"
    return f"antiphon serve{model}{''.join(words)}"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    known = options(ServerConfig)
    parser = Parser(
        prog="antiphon doctor",
        description="Check this machine: what is installed, what is missing, what will run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="the model to run [%(default)s]")
    parser.add_argument("--host", default=known["host"].default, help="where to listen [%(default)s]")
    parser.add_argument("--port", type=int, default=known["port"].default, help="[%(default)s]")
    parser.add_argument("--no-speed", action="store_false", dest="is_timed", help="do not run the model")
    return parser.parse_args(list(argv))
