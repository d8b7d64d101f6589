"""The tables of docs/configuration.md, generated from the table of options.

Usage: python -m tests.docs.option_tables
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from antiphon.config import ServerConfig
from antiphon.option import Group, OptionInfo, constants, options

PAGE: Final = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN: Final = "<!-- options: python -m tests.docs.option_tables -->\n"
END: Final = "<!-- end of options -->\n"


def value_of(info: OptionInfo) -> str:
    """The default, or without one the form of a value."""
    return f"`{info.shown_default}`" if info.shown_default else info.unit


def row(name: str, *cells: str) -> str:
    return f"| `{name}` | {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def lines() -> Iterator[str]:
    for group in Group:
        yield from (
            "",
            f"### {group.capitalize()}",
            "",
            "| Key | Default | Meaning |",
            "|---|---|---|",
        )
        for info in options(ServerConfig).values():
            if info.group is group:
                yield row(info.key, value_of(info), info.help)
    yield from ("", "## Constants", "", "| Name | Default | Reason |", "|---|---|---|")
    bounds = PAGE.with_name("reliability.md").read_text()  # has the others, with what happens beyond them
    for info in constants(ServerConfig).values():
        if f"| `{info.name}` |" not in bounds:
            yield row(info.name, value_of(info), info.help)
    yield ""


def with_tables(page: str) -> str:
    """The page with its tables as the code has them."""
    head, _, rest = page.partition(BEGIN)
    return head + BEGIN + "\n".join(lines()) + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
