"""Counts of the code from its syntax: lines, and features that make it hard to read."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from tests.repo.source import PRODUCT, Function, Source

SHORT_LINES: Final = 8
"""A private function of fewer lines that is used once says little more than its statements would."""

LOCKS: Final = frozenset({"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"})
TWO_SIDED: Final = ("antiphon.engine", "antiphon.ipc", "antiphon.serve", "antiphon.supervisor")
"""Packages on either side of the seam."""


def code_lines(source: Source) -> int:
    """Lines that are not blank, no comment and not of a docstring; a bare string is a docstring too."""
    strings: set[int] = set()
    for node in source.nodes:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate((line.strip() for line in source.text.splitlines()), 1)
    return sum(1 for number, line in lines if line and not line.startswith("#") and number not in strings)


def code_by_package(sources: Sequence[Source]) -> dict[str, int]:
    """Lines of code of each package, and below them of the server and of everything."""
    found: Counter[str] = Counter()
    for source in sources:
        lines = code_lines(source)
        found[source.package] += lines
        found["server"] += lines * source.path.startswith(PRODUCT[0])
        found["server, clients, quantize"] += lines
    return dict(sorted(found.items()))


class Classes:
    """All classes of the product, with what each inherits from another of them."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._named: defaultdict[str, list[tuple[str, ast.ClassDef]]] = defaultdict(list)
        for source in sources:
            for node in source.nodes:
                if isinstance(node, ast.ClassDef):
                    self._named[node.name].append((source.path, node))
        self.every: Final = [(path, node) for found in self._named.values() for path, node in found]

    def bases(self, path: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        """The product's own classes that a class of the file ``path`` is derived from."""
        for name in _base_names(node):
            found = [it for it in self._named[name] if it[1] is not node] if name in self._named else []
            yield from [] if name == "Protocol" else [it for it in found if it[0] == path] or found

    def depth(self, path: str, node: ast.ClassDef) -> int:
        """1 for a class that inherits nothing of the product's, and one more for each step.

        A class with nothing but a docstring is a name, and no step.
        """
        has_members = not all(isinstance(statement, ast.Expr | ast.Pass) for statement in node.body)
        return has_members + max((self.depth(*it) for it in self.bases(path, node)), default=0)

    def is_error(self, path: str, node: ast.ClassDef) -> bool:
        """Whether a class is an exception."""
        if any(name.endswith(("Error", "Exception", "Warning")) for name in _base_names(node)):
            return True
        return any(self.is_error(*it) for it in self.bases(path, node))

    def deep(self) -> list[tuple[int, str]]:
        """Depth and name of the classes deeper than two, exceptions left out, the deepest first."""
        depths = [
            (self.depth(path, node), f"{path}: {node.name}")
            for path, node in self.every
            if not self.is_error(path, node)
        ]
        return sorted(((depth, name) for depth, name in depths if depth > 2), reverse=True)

    def members(self, path: str, node: ast.ClassDef) -> set[str]:
        """Names of methods and attributes, the inherited ones among them."""
        found: set[str] = set()
        for inner in ast.walk(node):
            if isinstance(inner, Function):
                found.add(inner.name)
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                found.add(inner.id)
            elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                found.add(inner.attr)
        return found.union(*(self.members(*it) for it in self.bases(path, node)))

    def needless_protocols(self) -> list[str]:
        """Protocols that at most one class of the product has all the names of."""
        made = [self.members(*it) for it in self.every if "Protocol" not in _base_names(it[1])]
        return sorted(
            f"{path}: {node.name}"
            for path, node in self.every
            if "Protocol" in _base_names(node)
            and not any(ast.unparse(it) == "asyncio.Protocol" for it in node.bases)
            and sum(self.members(path, node) <= names for names in made) < 2
        )


def locks(sources: Sequence[Source]) -> list[str]:
    """Where a lock of any kind is made."""
    found = {
        f"{source.path}:{node.lineno}"
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.Call) and _last_name(node.func) in LOCKS
    }
    return sorted(found)


def private_uses(sources: Sequence[Source], tests: Sequence[Source]) -> list[str]:
    """Where tests use a private name that the product defines: an attribute, or an import."""
    known = {name for source in sources for name in _private_names(source.nodes)}
    return [
        f"{source.path}:{node.lineno} {name}"
        for source in tests
        for node in source.nodes
        if isinstance(node, ast.Attribute | ast.ImportFrom)
        for name in _used_from_outside(node)
        if name in known
    ]


def _used_from_outside(node: ast.Attribute | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [it.name for it in node.names]
    return [] if _last_name(node.value) in ("self", "cls") else [node.attr]


def short_and_used_once(sources: Sequence[Source]) -> list[str]:
    """Private functions of fewer than 8 lines that their file names once."""
    found: list[str] = []
    for source in sources:
        used = Counter(
            node.attr if isinstance(node, ast.Attribute) else node.id
            for node in source.nodes
            if isinstance(node, ast.Attribute | ast.Name)
        )
        found += [
            f"{source.path}:{node.lineno} {node.name}()"
            for node in source.nodes
            if isinstance(node, Function)
            and _is_private(node.name)
            and (node.end_lineno or node.lineno) - node.lineno + 1 < SHORT_LINES
            and used[node.name] == 1
        ]
    return found


def definitions(sources: Sequence[Source], verbs: Sequence[str]) -> list[str]:
    """Where a function on either side of the seam has one of these names, with the name."""
    return [
        f"{source.path}:{node.lineno} {node.name}"
        for source in sources
        if source.package in TWO_SIDED
        for node in source.nodes
        if isinstance(node, Function) and node.name in verbs
    ]


def lines_of(sources: Sequence[Source], paths: Sequence[str]) -> int:
    """All lines of those of these files that there are."""
    return sum(source.text.count("\n") for source in sources if source.path in paths)


def _base_names(node: ast.ClassDef) -> list[str]:
    return [_last_name(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _private_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Function | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.attr]
        else:
            continue
        yield from filter(_is_private, names)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
