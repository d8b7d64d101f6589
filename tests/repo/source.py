"""The Python files of the repository, parsed once for all checks and counts."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PRODUCT = ("server/antiphon", "clients/antiphon_client", "quantize/antiphon_quantize")
TESTS = ("tests/", "lab/tests/")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: its path in the repository, its text, its syntax and all nodes of that."""

    path: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]

    @property
    def package(self) -> str:
        """``server/antiphon/ipc/rings.py`` is in ``antiphon.ipc``, others in ``antiphon``."""
        return ".".join(Path(self.path).parts[1:-1][:2])


def read_sources(root: Path, paths: Sequence[str]) -> list[Source]:
    """The files ``paths``, which are relative to ``root``."""
    found = []
    for path in paths:
        text = (root / path).read_text(encoding="utf-8")
        tree = ast.parse(text, path)
        found.append(Source(path, text, tree, tuple(ast.walk(tree))))
    return found
