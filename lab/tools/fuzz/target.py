"""A fuzz target: a reader of untrusted bytes, the errors it may raise, and initial inputs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from antiphon.errors import AntiphonError

CORPUS: Final = Path(__file__).parent / "corpus"

MAX_CORPUS_BYTES: Final = 24_576
"""Most bytes of one target's corpus: it is in the repository, and a test reads all of it."""

MAX_WORDS: Final = 2000
"""Most characters of a refusal: it is sent back, and its sender must not choose its length."""


class Finding(Exception):  # noqa: N818 - what a fuzzer looks for
    """A violation of a reader's contract."""


@dataclass(frozen=True, slots=True)
class Target:
    """A reader of untrusted bytes: ``read`` returns or raises one of ``refusals``; anything else is a
    finding.

    ``max_bytes`` limits an input. ``is_remote``: the sender gets the text of a refusal.
    """

    read: Callable[[bytes], None]
    refusals: tuple[type[AntiphonError], ...] = (AntiphonError,)
    max_bytes: int = 1024
    is_remote: bool = True


def try_input(target: Target, data: bytes) -> bool:
    """Return whether the target accepts an input; False for a refusal.

    Raises:
        Finding: the text of its refusal is too long. Every other error but a refusal is propagated.
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
    """Return the inputs of a target, stored one per line in Python's notation of bytes."""
    lines = (CORPUS / f"{name}.txt").read_text(encoding="ascii").splitlines()
    return [bytes(ast.literal_eval(line)) for line in lines]


def write_corpus(name: str, inputs: Iterable[bytes]) -> int:
    """Write these inputs in order, up to the limit; returns the number of written inputs."""
    kept: list[str] = []
    size = 0
    for line in dict.fromkeys(map(repr, inputs)):
        if size + len(line) < MAX_CORPUS_BYTES:
            kept.append(line)
            size += len(line) + 1
    (CORPUS / f"{name}.txt").write_text("\n".join(kept) + "\n", encoding="ascii")
    return len(kept)
