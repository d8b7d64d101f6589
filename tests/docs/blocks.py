"""Fenced code blocks of a Markdown file, with the words after the fence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token


@dataclass(frozen=True, slots=True)
class Block:
    """One block: its language, how it is tested (the word after the language), the line it starts on."""

    language: str
    mark: str
    body: str
    line: int

    @property
    def commands(self) -> list[str]:
        """The lines that are neither empty nor comments; a backslash joins a line to the next."""
        lines = [line.strip() for line in self.body.replace("\\\n", " ").splitlines()]
        return [line for line in lines if line and not line.startswith("#")]


def tokens(text: str) -> list[Token]:
    """The tokens of a page, as code hosts read it: CommonMark with tables."""
    return MarkdownIt("commonmark").enable("table").parse(text)


def span(token: Token) -> tuple[int, int]:
    """The lines of a block, the first counted from 0 and the one after the last."""
    assert token.map is not None, token.type
    return token.map[0], token.map[1]


def read_blocks(path: Path) -> list[Block]:
    """Every fenced block of a file, in order."""
    blocks = []
    for token in tokens(path.read_text(encoding="utf-8")):
        if token.type == "fence":
            language, _, mark = token.info.strip().partition(" ")
            blocks.append(Block(language, mark.strip(), token.content, span(token)[0] + 1))
    return blocks


def without_blocks(text: str) -> str:
    """The text with its code, fenced or quoted in a line, taken out."""
    lines = text.split("\n")
    for token in tokens(text):
        if token.type in ("fence", "code_block"):
            first, end = span(token)
            lines[first:end] = [""] * (end - first)
    return re.sub(r"`[^`\n]*`", "", "\n".join(lines))
