"""Started processes: whichever line a signal interrupts, none is left."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import psutil
import pytest

from tests.support import launch
from tests.support.launch import held_signals, started

SOURCES = {launch.__file__, subprocess.__file__, contextlib.__file__}
SLEEPER = ("sleep", "600")
PRINT_HANDLER = "import signal; print(int(signal.getsignal(signal.SIGINT)), end='')"


@contextlib.contextmanager
def _interrupted_at(line: int) -> Iterator[None]:
    """Send this process SIGTERM at a line that the block runs in SOURCES, counted from 0."""
    lines = iter(range(line + 1))

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in SOURCES:
            return None
        if event == "line" and next(lines, None) == line:
            signal.raise_signal(signal.SIGTERM)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.fixture
def unwinding() -> Iterator[None]:
    """SIGTERM raises SystemExit."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("unwinding")
def test_no_process_is_left_at_whichever_line_of_its_start_a_signal_arrives() -> None:
    this = psutil.Process()
    before, at, is_whole = this.children(), 0, False
    while not is_whole:
        try:
            with _interrupted_at(at), started(SLEEPER):
                sys.settrace(None)
                is_whole = True
        except SystemExit:
            at += 1
        assert this.children() == before
    assert at > 100


@pytest.mark.usefixtures("unwinding")
def test_a_signal_during_a_block_is_handled_at_its_end_and_the_first_of_two_decides() -> None:
    ran = []

    def block() -> None:
        with held_signals():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            ran.append("the whole block")

    with pytest.raises(SystemExit, match="143"):
        block()
    assert ran
    with pytest.raises(SystemExit):  # the handler is back
        signal.raise_signal(signal.SIGTERM)


def test_signals_that_are_ignored_stay_so_in_what_the_block_starts() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with started((sys.executable, "-c", PRINT_HANDLER), stdout=subprocess.PIPE) as process:
            assert process.communicate()[0] == b"1"
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_starts_a_process_too() -> None:
    codes = []

    def run() -> None:
        with started(("true",)) as process:
            codes.append(process.wait())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert codes == [0]
