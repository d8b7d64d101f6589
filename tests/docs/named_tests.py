"""Tests named in documents: a path below ``tests/``, and after ``::`` a part of a test's name."""

from __future__ import annotations

import ast

from tests.repo.tracked import ROOT


def has_test(named: str) -> bool:
    """Whether there is such a test; without a part, whether the file has any."""
    path, _, part = named.partition("::")
    file = ROOT / "tests" / path
    if not (file.is_file() and file.name.startswith("test_")):
        return False
    names = [
        node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else node.id
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    ]
    return any(name.lower().startswith("test") and part in name for name in names)
