"""Moves the wall clock of processes while they run, by a library that they are started with.

libfaketime shifts waits too, so that Python cannot sleep for no time; this library (wall_clock.c) changes
only the time of day.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("wall_clock.c")
SHIFT: Final = "wall-clock-shift"


def with_wall_clock(folder: Path) -> dict[str, str]:
    """Return environment variables for processes whose wall clock :func:`shift_wall_clock` moves; needs a C
    compiler."""
    library, shift = folder / "wall_clock.so", folder / SHIFT
    subprocess.run(("cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE)), check=True)
    shift.write_bytes(struct.pack("<q", 0))
    return {"LD_PRELOAD": str(library), "WALL_CLOCK_SHIFT": str(shift)}


def shift_wall_clock(folder: Path, seconds: int) -> None:
    """Set the wall clock of the processes of ``folder`` to the machine's plus ``seconds``."""
    with (folder / SHIFT).open("r+b") as file:  # in place: the processes have mapped it
        file.write(struct.pack("<q", seconds))
