"""Fenced code blocks of a Markdown file, with the words after the fence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One block: its language, how it is tested (the word after the language), the line it starts on."""

    language: str
    mark: str
    body: str
    line: int

    @property
    def commands(self) -> list[str]:
        """The lines that are neither empty nor comments."""
        lines = [line.strip() for line in self.body.splitlines()]
        return [line for line in lines if line and not line.startswith("#")]


def read_blocks(path: Path) -> list[Block]:
    """Every fenced block of a file, in order."""
    text = path.read_text()
    blocks = []
    for match in _FENCE.finditer(text):
        language, _, mark = match["info"].strip().partition(" ")
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(language, mark.strip(), match["body"], line))
    return blocks


def without_blocks(text: str) -> str:
    """The text with its code, fenced or quoted in a line, taken out."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))
