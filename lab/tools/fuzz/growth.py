"""Adds inputs to a corpus if they reach lines that no other input reaches."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import antiphon
from lab.tools.fuzz.target import Target, try_input

Line = tuple[str, int]
PACKAGE = str(antiphon.__path__[0])


def lines_of(target: Target, data: bytes) -> set[Line]:
    """Return the lines of the server that run while ``target`` reads an input."""
    found: set[Line] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            found.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(Exception):  # a finding has ended the run before
            try_input(target, data)
    finally:
        sys.settrace(before)
    return found


def grown(target: Target, corpus: Sequence[bytes], others: Iterable[bytes]) -> list[bytes]:
    """Return the corpus with those of ``others``, the shortest first, that reach a new line."""
    kept, reached = list(corpus), set[Line]()
    for data in corpus:
        reached |= lines_of(target, data)
    for data in sorted(set(others) - set(corpus), key=lambda each: (len(each), each)):
        new = lines_of(target, data) - reached
        if new:
            kept.append(data)
            reached |= new
    return kept
