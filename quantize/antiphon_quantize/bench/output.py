"""Output of a run: the three files of a card, numbered where they exist, and lines of progress."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from antiphon.errors import ConfigError, MissingExtraError
from antiphon_quantize.bench.card import Card, card_to_json
from antiphon_quantize.bench.figure import draw, load_matplotlib
from antiphon_quantize.bench.page import render

SUFFIXES = (".md", ".json", ".png")


def free_place(out: Path) -> Path:
    """``out``, or ``out-2``, ``out-3`` and so on: the first place with none of a card's files."""
    names = (out if number == 1 else out.with_name(f"{out.name}-{number}") for number in itertools.count(1))
    return next(name for name in names if not any(path.exists() for path in _paths(name)))


def can_draw() -> bool:
    """Whether the card gets a picture; without matplotlib the reason is printed, and the rest continues."""
    try:
        load_matplotlib()
    except MissingExtraError as error:
        tell(f"no picture: {error}")
        return False
    return True


def write_card(card: Card, out: Path, *, has_figure: bool) -> list[Path]:
    """Write ``out`` with each suffix, JSON first: nothing that was measured is lost by what comes later."""
    page, values, figure = _paths(out)
    write_new(values, card_to_json(card))
    if has_figure:
        draw(card, figure)
    write_new(page, render(card, figure.name if has_figure else None))
    return [page, values, *([figure] if has_figure else [])]


def _paths(out: Path) -> list[Path]:
    return [out.with_name(out.name + suffix) for suffix in SUFFIXES]


def check_absent(*paths: Path) -> None:
    """Raise ConfigError for the first of these files that exists."""
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} exists and is not written over; choose another place, or remove it")


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet, and the folders above it.

    Raises:
        ConfigError: it exists, or cannot be written.
    """
    check_absent(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def tell(line: str) -> None:
    """A line of progress."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201
