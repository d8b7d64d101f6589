"""What is fuzzed: a reader of bytes from elsewhere, the errors it may raise, and inputs to begin with."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from antiphon.errors import AntiphonError

CORPUS: Final = Path(__file__).parent / "corpus"

MAX_CORPUS_BYTES: Final = 24_576
"""Of one target: the corpus is in the tree, and a test reads all of it."""

MAX_WORDS: Final = 2000
"""Characters of a refusal: it is sent back, and its sender must not choose how long it is."""


class Finding(Exception):  # noqa: N818 - what a fuzzer looks for
    """A reader did what it must not."""


@dataclass(frozen=True, slots=True)
class Target:
    """``read`` takes any bytes, and returns or raises one of ``refusals``; all else is a finding.

    ``max_bytes`` bounds an input. ``is_remote`` says that the sender gets the words of a refusal.
    """

    read: Callable[[bytes], None]
    refusals: tuple[type[AntiphonError], ...] = (AntiphonError,)
    max_bytes: int = 1024
    is_remote: bool = True


def try_input(target: Target, data: bytes) -> bool:
    """Whether an input is read rather than refused.

    Raises:
        Finding: the words of its refusal are too long. Every other error but a refusal passes through.
    """
    try:
        target.read(data)
    except target.refusals as refusal:
        if target.is_remote and len(str(refusal)) > MAX_WORDS:
            raise Finding(f"a refusal of {len(str(refusal))} characters: {str(refusal)[:200]}") from refusal
        return False
    return True


def require(fact: bool, words: str) -> None:
    """Raise Finding with ``words`` unless ``fact``."""
    if not fact:
        raise Finding(words)


def read_corpus(name: str) -> list[bytes]:
    """The inputs of a target: one a line, as Python writes bytes."""
    lines = (CORPUS / f"{name}.txt").read_text(encoding="ascii").splitlines()
    return [bytes(ast.literal_eval(line)) for line in lines]


def write_corpus(name: str, inputs: Iterable[bytes]) -> int:
    """Keep these inputs, the first ones first, as far as there is room; returns how many are kept."""
    kept: list[str] = []
    size = 0
    for line in dict.fromkeys(map(repr, inputs)):
        if size + len(line) < MAX_CORPUS_BYTES:
            kept.append(line)
            size += len(line) + 1
    (CORPUS / f"{name}.txt").write_text("\n".join(kept) + "\n", encoding="ascii")
    return len(kept)
