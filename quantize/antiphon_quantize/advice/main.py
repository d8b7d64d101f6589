"""``antiphon models``: the models that are here, those that are published, and what fits a machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from antiphon.backends.machine import list_gpus
from antiphon.cores import usable_cores
from antiphon.engine.memory import host_bytes
from antiphon.errors import ConfigError
from antiphon.option import Parser
from antiphon_quantize.advice.families import TRANSLATION, ModelFamilies, load_families
from antiphon_quantize.advice.fit import (
    FitRequest,
    card_named,
    parse_bytes,
    sessions_of,
    speech_that_fits,
    text_that_fits,
)
from antiphon_quantize.advice.here import builtin_manifests, cached_repositories, hub_cache, memory_here
from antiphon_quantize.advice.override import compose_override
from antiphon_quantize.advice.show import (
    builtin_table,
    cache_lines,
    families_age,
    families_table,
    speech_advice,
    text_advice,
)

EXAMPLES = """\
examples:
  antiphon models                                  what is built in, cached, published, and fits here
  antiphon models --fits 24GB --modality duplex --license commercial --sessions 8
  antiphon models --fits H100 --modality duplex --sessions 40 --compose compose.override.yaml
  antiphon models --fits 16GB --modality text                      a text model for a cascade
"""

MODALITIES = ("duplex", TRANSLATION, "stt", "tts", "text")


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = Parser(
        prog="antiphon models",
        description="The built-in, cached and published models, with licences, sizes and what fits.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--fits", metavar="MEMORY", help="recommend a model that fits: 24GB, 80GiB, H100")
    parser.add_argument("--sessions", type=int, default=1, metavar="N", help="sessions at once [1]")
    parser.add_argument("--modality", choices=MODALITIES, help="what it does")
    parser.add_argument("--language", metavar="CODE", help="a language it hears or speaks: en, fr")
    parser.add_argument(
        "--license", "--licence", choices=("any", "commercial"), default="any", help="what it may be used for"
    )
    parser.add_argument(
        "--compose",
        metavar="FILE",
        help="write the recommendation as an override of compose.yaml, '-' prints it",
    )
    return parser


def main(argv: Sequence[str], today: Callable[[], date] = date.today) -> int:
    """Run the command line; 0 when there is something to recommend, else 1.

    ``today`` dates the table of published models, which says when it is over six months old.

    Raises:
        ConfigError: an option that cannot be used.
    """
    options = build_parser().parse_args(list(argv))
    families = load_families()
    if options.sessions < 1:
        raise ConfigError(f"sessions is {options.sessions}, at least 1 is needed")
    if options.fits is None:
        if options.compose is not None:
            raise ConfigError("compose is given without fits; say how much memory there is")
        print(_overview(families, today()))  # noqa: T201
        return 0
    card = card_named(options.fits)
    request = FitRequest(
        parse_bytes(options.fits) if card is None else round(card.memory_bytes),
        options.sessions,
        options.modality,
        options.language,
        options.license == "commercial",
        card,
    )
    if options.modality == "text":
        if options.language is not None:
            raise ConfigError("language is for speech models; no text model's languages are listed")
        if options.compose is not None:
            raise ConfigError("compose.yaml takes a text model by its variable LLM_MODEL, not by an override")
        texts = text_that_fits(families.text, request)
        return _say(text_advice(texts[0], request, texts[1:6]) if texts else None, request)
    fits = speech_that_fits(families.audio, request)
    if fits and options.compose is not None:
        override = compose_override(fits[0], request)
        if options.compose == "-":
            print(override, end="")  # noqa: T201
            return 0
        _write(Path(options.compose), override)
    return _say(speech_advice(fits[0], request, fits[1:6]) if fits else None, request)


def _overview(families: ModelFamilies, today: date) -> str:
    """What is built in, what is cached, and what is published, with what fits."""
    cache = hub_cache()
    cached = cached_repositories(cache)
    memory = memory_here(list_gpus(), host_bytes(), usable_cores())
    return "\n\n".join(
        (
            builtin_table(builtin_manifests()),
            cache_lines(cached, cache),
            families_age(families.read_on, today),
            families_table(families, memory, cached),
        )
    )


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:  # never over somebody's own
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _say(advice: str | None, request: FitRequest) -> int:
    if advice is None:
        print(  # noqa: T201
            f"nothing fits: {sessions_of(request.sessions)} in {request.memory_bytes:,} bytes; "
            "see 'antiphon models'",
            file=sys.stderr,
        )
        return 1
    print(advice)  # noqa: T201
    return 0
