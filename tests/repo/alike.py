"""Functions that two backends share, which could be moved to the host half.

Two functions are alike when they have the same statements but for docstrings, annotations and the names of
what is local.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

BACKENDS: Final = "server/antiphon/backends/"
LEAST_LINES: Final = 8
"""A shorter function says little more than a call of another one would."""


def alike_functions(root: Path, paths: Sequence[str]) -> Iterator[str]:
    """Functions that backends among ``paths``, relative to ``root``, have alike, a sentence each."""
    homes: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in paths:
        if path.startswith(BACKENDS):
            backend, _, _ = path.removeprefix(BACKENDS).rpartition("/")
            for function in _functions(ast.parse((root / path).read_text(encoding="utf-8"), path)):
                home = backend.partition("/")[0], f"{path}:{function.lineno} {function.name}()"
                homes[_shape(function)].append(home)
    for found in homes.values():
        if len({backend for backend, _ in found}) > 1:
            places = ", ".join(place for _, place in found)
            yield f"these functions are alike: {places}; let the host have one"


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno + 1 >= LEAST_LINES:
            yield node


def _shape(function: ast.FunctionDef) -> str:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    names = _Names()
    arguments = ast.dump(names.visit(function.args))
    return arguments + "".join(ast.dump(names.visit(statement)) for statement in body)


class _Names(ast.NodeTransformer):
    """Numbers names in the order in which they come, and drops annotations."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def _number(self, name: str) -> str:
        return self._numbers.setdefault(name, f"name{len(self._numbers)}")

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._number(node.arg))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._number(node.id), node.ctx)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return ast.Assign([self.visit(node.target)], self.visit(node.value))
