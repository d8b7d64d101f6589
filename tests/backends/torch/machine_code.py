"""Instruction counts of a compiled kernel's machine code, inside and outside of loops."""

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
_NO_WORK = ("NOP", "BRA.DIV")


def count(names: Counter[str], *beginnings: str) -> int:
    """Instructions whose names begin so."""
    return sum(number for name, number in names.items() if name.startswith(beginnings))


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What was counted, instructions of a warp by name.

    ``loops`` holds one turn of each loop, ``straight`` what is in none. What is spilled lies on the stack.
    """

    registers: int
    stack_bytes: int
    shared_bytes: int
    warps: int
    loops: tuple[Counter[str], ...]
    straight: Counter[str]

    @property
    def loop(self) -> Counter[str]:
        """One turn of the longest loop."""
        return max(self.loops, key=Counter.total, default=Counter())

    @property
    def barriers(self) -> int:
        """Of straight code and one turn of each loop."""
        return sum(count(part, "BAR.SYNC") for part in (self.straight, *self.loops))


def machine_code(kernel: CompiledKernel, folder: Path) -> MachineCode:
    """Disassemble a kernel."""
    path = folder / "kernel.cubin"
    path.write_bytes(kernel.asm["cubin"])
    used = _USED.search(_run("cuobjdump", "-res-usage", path))
    assert used is not None
    names: list[str] = []
    begun: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for line in _run("nvdisasm", "-c", path).splitlines():
        if label := _LABEL.match(line):
            begun[label[1]] = len(names)
        elif found := _INSTRUCTION.search(line):
            names.append(found[1])
            target = _TARGET.search(found[2])
            if found[1].startswith("BRA") and target and begun.get(target[1], len(names)) < len(names) - 1:
                spans.append((begun[target[1]], len(names)))
    is_looped = {index for begin, end in spans for index in range(begin, end)}
    straight = [name for index, name in enumerate(names) if index not in is_looped and name not in _NO_WORK]
    return MachineCode(
        int(used[1]),
        int(used[2]) + int(used[3]),
        kernel.metadata.shared,
        kernel.metadata.num_warps,
        tuple(Counter(names[begin:end]) for begin, end in spans),
        Counter(straight),
    )


def _run(program: str, *words: str | Path) -> str:
    command = [str(PROGRAMS / program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
