"""The structure of the packages from their source: imports, lengths, and names of classes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.repo.source import Function, Source

PACKAGES = ("antiphon", "antiphon_client", "antiphon_quantize", "lab", "tests")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 50


@dataclass(frozen=True, slots=True)
class Import:
    """One import of a module of this repository; ``is_hidden``: it stands inside a function."""

    module: str
    line: int
    is_hidden: bool


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its name as Python has it, its path in the repository, and what it holds."""

    name: str
    path: str
    lines: int
    imports: tuple[Import, ...]
    dynamic: tuple[int, ...]
    """Lines that call ``import_module`` or ``__import__``."""
    classes: tuple[str, ...]
    functions: tuple[tuple[str, int], ...]
    """Each function and its length in lines."""


def read_modules(sources: Sequence[Source]) -> dict[str, Module]:
    """The modules of these files, by name."""
    names = {module_name(source.path): source for source in sources}
    return {name: _module(source, name, set(names)) for name, source in names.items()}


def module_name(path: str) -> str:
    """``server/antiphon/ipc/rings.py`` is ``antiphon.ipc.rings``."""
    parts = Path(path).with_suffix("").parts
    first = next((at for at, part in enumerate(parts) if part in PACKAGES), 0)
    return ".".join(parts[first:]).removesuffix(".__init__")


def circles(modules: Mapping[str, Module]) -> list[list[str]]:
    """Groups of modules of which each imports each other, over any number of steps (Tarjan 1972)."""
    graph = {name: [it.module for it in module.imports] for name, module in modules.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph.get(name, ()):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group, stack[at:] = stack[at:], []
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def names_used_twice(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Public classes of one name in several files. Two backends may each have a layer of one name."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        for name in module.classes:
            homes[name].append(module.path)
    return {name: paths for name, paths in sorted(homes.items()) if len(_apart(paths)) > 1}


def _apart(paths: Sequence[str]) -> list[str]:
    """``paths`` with those of all backends counted as one."""
    shared = [path for path in paths if "/backends/" not in path]
    return shared + ["backends"] * (len(shared) < len(paths))


def _module(source: Source, name: str, known: set[str]) -> Module:
    return Module(
        name,
        source.path,
        source.text.count("\n"),
        tuple(_imports(source.tree, known)),
        tuple(_dynamic(source.nodes)),
        tuple(
            it.name for it in source.tree.body if isinstance(it, ast.ClassDef) and not it.name.startswith("_")
        ),
        tuple(
            (it.name, (it.end_lineno or it.lineno) - it.lineno + 1)
            for it in source.nodes
            if isinstance(it, Function)
        ),
    )


def _imports(node: ast.AST, known: set[str], is_hidden: bool = False) -> Iterator[Import]:
    for inner in ast.iter_child_nodes(node):
        for module in _targets(inner, known):
            assert isinstance(inner, ast.stmt)
            yield Import(module, inner.lineno, is_hidden)
        if isinstance(inner, ast.stmt | ast.excepthandler | ast.match_case):  # an import is in no expression
            yield from _imports(inner, known, is_hidden or isinstance(inner, Function))


def _targets(node: ast.AST, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            if inner in known:
                yield inner
            elif node.module in known:
                yield node.module


def _dynamic(nodes: Sequence[ast.AST]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                yield node.lineno
