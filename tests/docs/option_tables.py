"""The tables of docs/configuration.md, generated from the table of options.

Usage: python -m tests.docs.option_tables
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from antiphon.config import ServerConfig
from antiphon.option import Group, OptionInfo, constants, options
from antiphon.values import plain

PAGE: Final = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN: Final = "<!-- options: python -m tests.docs.option_tables -->\n"
END: Final = "<!-- end of options -->\n"


def value_of(info: OptionInfo) -> str:
    """What a value may be: its unit, and its range or choices."""
    rule = info.rule
    if rule.choices:
        return ", ".join(f"`{choice}`" for choice in rule.choices)
    if info.kind is bool:
        return "`true`, `false`"
    low, high = (None if bound is None else plain(bound) for bound in (rule.low, rule.high))
    bounds = f", {low} to {high}" if low and high else f", at least {low}" if low else ""
    return f"{info.unit}{bounds}{', `auto`' if info.is_automatic else ''}"


def row(name: str, *cells: str) -> str:
    return f"| `{name}` | {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def default_of(info: OptionInfo) -> str:
    return f"`{info.shown_default}`" if info.shown_default else ""


def lines() -> Iterator[str]:
    for group in Group:
        yield from (
            "",
            f"### {group.capitalize()}",
            "",
            "| Key | Value | Default | Meaning |",
            "|---|---|---|---|",
        )
        for info in options(ServerConfig).values():
            if info.group is group:
                yield row(info.key, value_of(info), default_of(info), info.help)
    yield from ("", "## Constants", "", "| Name | Default | Reason |", "|---|---|---|")
    for info in constants(ServerConfig).values():
        if info.path[0] != "limits":  # docs/reliability.md has those, with what happens beyond them
            yield row(info.name, default_of(info), info.help)
    yield ""


def with_tables(page: str) -> str:
    """The page with its tables as the code has them."""
    head, _, rest = page.partition(BEGIN)
    return head + BEGIN + "\n".join(lines()) + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
