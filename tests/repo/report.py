"""The checks of structure in ``make check``: rules, lengths, duplicate names, counts.

Usage: python -m tests.repo.report [NAME]

With the name of a count it lists the places instead. Exits with 1 for a count above its budget, a circle of
imports, a hidden import or a class name used twice without a reason, a function that two backends have alike,
a word that is defined twice, or prose over 100 columns.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.docs.blocks import without_blocks
from tests.repo.alike import alike_functions
from tests.repo.budgets import counted, over_budget, places, table, verbs_that_are_gone
from tests.repo.glossary import faults_of_words
from tests.repo.source import PRODUCT, Source, read_sources
from tests.repo.structure import (
    MAX_FILE_LINES,
    MAX_FUNCTION_LINES,
    Module,
    circles,
    names_used_twice,
    read_modules,
)
from tests.repo.tracked import ROOT, tracked_files
from tests.repo.words import faults_of_plain_words

MAX_COLUMNS: Final = 100
UNBROKEN: Final = ("#", "|", "<", "![", "    ")
"""How lines begin that cannot be broken: headings, tables, HTML, pictures, indented code."""

HIDDEN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "antiphon.backends.pocket.factory": "the package pocket-tts",
        "antiphon.backends.torch.kernels.fused": "Triton",
        "antiphon.start": "the commands, whose import Ctrl-C may end",
        "antiphon.backends.torch.modules.transformer": "Triton",
        "antiphon.serve.hosting.options": "aiohttp, which a help does without",
        "antiphon.serve.hosting.main": "one of the two ways to serve, each with its own start-up cost",
        "antiphon_quantize.gate_measures": "torch",
        "antiphon_quantize.gate_run": "the packages of the backend that runs the model",
        "antiphon_quantize.main": "the packages of the target",
        "antiphon_quantize.onnx_target": "the package onnx",
    }
)
"""Modules that import others inside a function, and what the import waits for. All of them point down."""

BY_NAME: Final[Mapping[str, str]] = MappingProxyType(
    {
        "antiphon.cli": "the table of commands",
        "antiphon.backends.registry": "the table of backends",
        "antiphon_quantize.gate_sound": "pesq, which is not installed by any extra",
    }
)
"""Modules that import by a name in a table, and which table."""

LONG: Final[Mapping[str, str]] = MappingProxyType(
    {
        "clients/antiphon_client/session.py": "one paced call, from the upgrade to the close frame",
        "clients/antiphon_client/talk.py": "one call on a sound card, with its reconnections",
        "server/antiphon/engine/loop.py": "the one engine thread: wait, tick, publish, fail",
        "server/antiphon/ipc/messages.py": "all messages between a front end and an engine",
        "server/antiphon/ipc/rings.py": "one layout in shared memory, read and written side by side",
        "server/antiphon/serve/access/callers.py": "identity and limits are decided under one count",
        "server/antiphon/supervisor/supervisor.py": "the life of all processes of a server",
        "server/antiphon/engine/engine.py": "the engine's whole interface",
        "server/antiphon/engine/resume.py": "whose row a call has",
        "server/antiphon/engine/rows.py": "one pass over the arrays of all sessions",
        "server/antiphon/ipc/session.py": "the caller's whole interface to a call",
        "server/antiphon/protocol/moshi.py": "all messages of one protocol, in both directions",
        "server/antiphon/serve/calls/exchange.py": "both directions of a call, in its turns",
        "server/antiphon/serve/transport/socket.py": "the bounds of one WebSocket",
        "attend_split": "a kernel is compiled as one function",
        "attend_limbs": "a kernel is compiled as one function",
        "decode_attention": "two launches, with every argument by its name",
        "rotate_and_write": "a kernel is compiled as one function",
        "choose_tokens": "a kernel is compiled as one function",
        "families_table": "one list of columns",
        "make_and_multiply": "a kernel is compiled as one function",
        "build_app": "one list of what a server consists of",
        "manifest_from_json": "one list of keys",
    }
)
"""Why a file or a function is longer than the aim."""

SAME: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AppendAudio": "an event of OpenAI Live, of Realtime and of translations, each with its own fields",
        "Audio": "a message of Moshi's protocol and one of Kyutai's",
        "Close": "an event of OpenAI Live and of translations, and a message between processes",
        "Error": "a message of Moshi's, Kyutai's and OpenAI's protocols",
        "Event": "a message of Moshi's protocol and one of OpenAI Realtime",
        "Ping": "a message of Moshi's protocol and one of the supervisor",
        "Ready": "a message of Kyutai's protocol and one of the supervisor",
        "Step": "a message of Kyutai's protocol; a backend's pass over some rows",
        "Text": "a message of Moshi's and of Kyutai's protocols",
        "Unsupported": "an event that OpenAI Live and Realtime know and no model here can follow",
        "Update": "an event of OpenAI Live, of Realtime and of translations, each with its own fields",
        "Word": "a message of Kyutai's protocol; a word of a transcript, whatever the protocol",
    }
)
"""Class names used in more than one file: wire protocols give them, and modules use them qualified."""


@cache
def everything() -> list[Source]:
    """All Python files of the repository."""
    return read_sources(
        ROOT, [it.relative_to(ROOT).as_posix() for it in tracked_files() if it.suffix == ".py"]
    )


def product(modules: Mapping[str, Module]) -> dict[str, Module]:
    """Those of the three packages."""
    return {name: it for name, it in modules.items() if it.path.startswith(PRODUCT)}


def faults(modules: Mapping[str, Module]) -> Iterator[str]:
    """What must not be, a sentence each."""
    for group in circles(modules):
        yield f"these import each other in a circle: {', '.join(group)}"
    for name, paths in names_used_twice(modules).items():
        if name not in SAME:
            yield (
                f"class {name} is defined in {', '.join(paths)}; give each a name of its own, or the "
                "reason in SAME of tests/repo/report.py"
            )
    for module in modules.values():
        hidden = [it for it in module.imports if it.is_hidden]
        if hidden and module.name not in HIDDEN:
            yield (
                f"{module.path}:{hidden[0].line} imports {hidden[0].module} inside a function; move it to "
                "the top, or give the reason in HIDDEN of tests/repo/report.py"
            )
        if module.dynamic and module.name not in BY_NAME:
            yield f"{module.path}:{module.dynamic[0]} imports by name; use an import statement"


def faults_of_lab(modules: Mapping[str, Module]) -> Iterator[str]:
    """Imports of the lab by the product or by its tests, a sentence each."""
    for module in modules.values():
        for it in module.imports:
            if it.module.startswith("lab") and not module.name.startswith("lab"):
                yield f"{module.path}:{it.line} imports {it.module}; only the lab imports the lab"


def lengths(modules: Mapping[str, Module]) -> Iterator[str]:
    """Files and functions over the aim, the longest first, with their reasons."""
    long = [(it.lines, it.path, it.path) for it in modules.values() if it.lines > MAX_FILE_LINES]
    long += [
        (lines, f"{it.path}: {name}()", name)
        for it in modules.values()
        for name, lines in it.functions
        if lines > MAX_FUNCTION_LINES
    ]
    for lines, where, key in sorted(long, reverse=True):
        yield f"{lines:5} {where}: {LONG.get(key, 'no reason is given')}"


def faults_of_pages(docs: Path) -> Iterator[str]:
    """Pages with lines that are too wide, a sentence each."""
    for page, count in wide_lines(docs).items():
        yield f"docs/{page} has {count} lines of prose over {MAX_COLUMNS} columns"


def wide_lines(docs: Path) -> dict[str, int]:
    """Prose lines over 100 columns by page; headings, tables, links and code cannot be broken."""
    found: dict[str, int] = {}
    for page in sorted(docs.rglob("*.md")):
        prose = without_blocks(page.read_text(encoding="utf-8")).splitlines()
        wide = [line for line in prose if len(line) > MAX_COLUMNS and not line.startswith(UNBROKEN)]
        if wide:
            found[page.relative_to(docs).as_posix()] = len(wide)
    return found


def main() -> int:
    """Print the report."""
    gc.disable()  # syntax trees are millions of objects, and none of them is garbage before the end
    sources = everything()
    every = read_modules(sources)
    modules = product(every)
    found_at = places(sources)
    if sys.argv[1:]:
        print(*found_at[sys.argv[1]], sep="\n")
        return 0
    counts = counted(sources, found_at)
    found = [
        *over_budget(counts),
        *verbs_that_are_gone(found_at),
        *faults(modules),
        *faults_of_lab(every),
        *faults_of_words(ROOT / "docs"),
    ]
    found += [
        *faults_of_plain_words(ROOT),
        *faults_of_pages(ROOT / "docs"),
        *alike_functions(ROOT, [it.path for it in modules.values()]),
    ]
    print(f"Over {MAX_FILE_LINES} lines a file or {MAX_FUNCTION_LINES} a function:")
    print(*lengths(modules), sep="\n")
    twice = names_used_twice(modules)
    print(f"Class names used in more than one file: {len(twice)}: {', '.join(twice)}")
    print("Lines of code by package, and what else has a budget:")
    print(*table(counts), sep="\n")
    print(f"Faults of structure, names, words, pages and budgets: {len(found)}")
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
