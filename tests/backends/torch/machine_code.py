"""A compiled kernel's machine code: what its longest loop asks of a card's units, counted."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.compiler import CompiledKernel

PROGRAMS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
"""Where Triton's wheel has NVIDIA's assembler and its disassemblers."""

_LABEL = re.compile(r"\s*(\.L_x?_?\d+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+ )?\s*([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)(.*)")
_TARGET = re.compile(r"\((\.L_x?_?\d+)\)")
_USED = re.compile(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What was counted: ``loop`` are the instructions of a warp in one turn of the longest loop, by name."""

    registers: int
    spilled_bytes: int
    shared_bytes: int
    loop: Counter[str]

    @property
    def instructions(self) -> int:
        """Of one turn."""
        return self.loop.total()

    def count(self, *beginnings: str) -> int:
        """Of one turn, those whose names begin so."""
        return sum(number for name, number in self.loop.items() if name.startswith(beginnings))


def machine_code(kernel: CompiledKernel, folder: Path) -> MachineCode:
    """Disassemble a kernel."""
    path = folder / "kernel.cubin"
    path.write_bytes(kernel.asm["cubin"])
    used = _USED.search(_run("cuobjdump", "-res-usage", path))
    assert used is not None
    names: list[str] = []
    begun: dict[str, int] = {}
    longest: list[str] = []
    for line in _run("nvdisasm", "-c", path).splitlines():
        if label := _LABEL.match(line):
            begun[label[1]] = len(names)
        elif found := _INSTRUCTION.search(line):
            names.append(found[1])
            target = _TARGET.search(found[2])
            if found[1].startswith("BRA") and target and target[1] in begun:
                turn = names[begun[target[1]] :]
                longest = turn if 1 < len(turn) > len(longest) else longest
    return MachineCode(int(used[1]), int(used[2]) + int(used[3]), kernel.metadata.shared, Counter(longest))


def _run(program: str, *words: str | Path) -> str:
    command = [str(PROGRAMS / program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
