"""Memory use of the process, and its limit."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from antiphon.backends.machine import host_bytes, process_bytes


def test_memory_that_is_written_counts() -> None:
    # Pages of our own: an array may lie where earlier tests' memory was given back and is still resident.
    piece = b"\1" * (1 << 20)
    with mmap.mmap(-1, 64 << 20) as held:
        before = process_bytes()
        for _ in range(64):
            held.write(piece)
        assert process_bytes() - before > 32 << 20


def test_a_container_limit_counts_where_it_is_less_than_the_machine(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    none, small, huge = tmp_path / "none", tmp_path / "small", tmp_path / "huge"
    none.write_text("max\n")
    small.write_text("123456789\n")
    huge.write_text(f"{2**62}\n")
    assert host_bytes((none, huge, tmp_path / "missing")) == machine
    assert host_bytes((none, small)) == 123456789
