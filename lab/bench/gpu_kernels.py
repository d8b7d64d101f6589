"""Compiles the machine code of every launch of a tick, and compares its resources with a GPU's limits.

    python -m lab.bench.gpu_kernels                                 moshi-7b for compute capability 9.0
    python -m lab.bench.gpu_kernels --model stt-1b tts-1.6b --capability 80 89 100 120
    python -m lab.bench.gpu_kernels --rows 1 4 --kernel prepare_rows

Kernels are compiled, not run, so no GPU is needed: about 0.7 s of a core each. Exits with 1 if a launch is
out of limits. Registers are counted per thread; instructions per warp, straight code and one iteration of
each loop; barriers in total.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from triton.backends.compiler import GPUTarget

from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.models.costs import PAIRED_INSTRUCTIONS
from lab.bench.gpu_models import Form, published_sizes
from lab.bench.gpu_trace import distinct, traced
from tests.backends.torch.compiled import SMALLEST_SHARED_BYTES
from tests.backends.torch.fake_cuda import Launch
from tests.backends.torch.machine_code import MachineCode, count, machine_code

ROWS = (1, 2, 4, 8, 16, 24, 32, 64, 128)
"""Rows of ticks whose kernels differ."""
REGISTERS = 65536
"""Registers of a unit, which a program uses at most."""
STRAIGHT = {"prepare_rows": 1000, "attend_limbs": 1700}
MOST_STRAIGHT = 1500
"""Instructions of a warp outside loops."""
STACK_BYTES = {"write_window": 32}
"""Stack bytes of the exact sine and cosine of large angles; nothing else has a stack."""
PRODUCTS = ("make_and_multiply", "multiply_pairs", "multiply_rows")
MATRIX, BYTE_LOADS = ("IMMA", "IGMMA"), ("LDS.U8", "LDS.S8", "LDG.E.U8", "LDG.E.S8")
RING_KIB = (25, 35, 52)
"""Instructions of a warp per KiB of ring, by the number of packed keys and values. An H200, which has the
fewest per byte read, issues 62 in that time."""
SHORT_TURN = 720
"""Instructions of a product that makes sixteen rows of a depformer, whose cost is rounding, not weights."""


def faults(launch: Launch, code: MachineCode) -> Iterator[str]:
    """Yield a sentence for each limit that a launch exceeds."""
    bounds: dict[str, tuple[float, float]] = {
        "bytes of stack": (code.stack_bytes, STACK_BYTES.get(launch.name, 0)),
        "bytes shared": (code.shared_bytes, SMALLEST_SHARED_BYTES),
        "registers of a program": (code.registers * 32 * code.warps, REGISTERS),
        "straight instructions": (code.straight.total(), STRAIGHT.get(launch.name, MOST_STRAIGHT)),
    }
    if launch.name in PRODUCTS:
        bounds |= _product_bounds(launch, code)
    if launch.name == "attend_limbs":
        packed = [launch.constants[f"IS_{part}_PACKED"] for part in "KV"]
        widths = [launch.constants["WIDTH"] / (2 if is_packed else 1) + 4 for is_packed in packed]
        ring_kib = launch.constants["PAGE"] * sum(widths) / 1024
        bounds |= {
            "instructions of a KiB of ring": (code.loop.total() / ring_kib, RING_KIB[sum(packed)]),
            "conversions": (count(code.loop, "HMMA", "I2F.F16", "I2F.BF16", "F2F", *BYTE_LOADS), 0),
            # Up to this number five programs fit into a unit; with packed pages four read as fast.
            "registers": (code.registers, 128 if sum(packed) else 102),
        }
    yield from (
        f"{name}: {found:.4g}, at most {most}" for name, (found, most) in bounds.items() if found > most
    )


def _product_bounds(launch: Launch, code: MachineCode) -> dict[str, tuple[float, float]]:
    """Limits of a product: its rows are made without waiting, and its loop reads weights at memory's rate."""
    waits = [count(turn, "BAR.SYNC") for turn in code.loops if not count(turn, *MATRIX)]
    turns = [turn for turn in code.loops if count(turn, *MATRIX)]
    bounds: dict[str, tuple[float, float]] = {
        "barriers of loops before the product": (sum(waits), 0),
        "float products": (sum(count(turn, "HMMA", "FFMA.FTZ") for turn in turns), 0),
        "single bytes loaded": (sum(count(turn, *BYTE_LOADS) for turn in turns), 0),
    }
    for turn in turns:
        constants, is_made = launch.constants, launch.name == "make_and_multiply"
        if launch.name == "multiply_pairs":
            kib = constants["COLUMNS"] * constants["BLOCK"] * constants["TURN"] / 1024
            most = PAIRED_INSTRUCTIONS[constants["ROWS"]]
            bounds["instructions of a KiB of weights"] = turn.total() / kib, most
            continue
        weights = 2 if constants.get("IS_GATED") else 1
        if is_made and constants["PLACES"] > 4:
            bounds["instructions of a turn"] = turn.total(), SHORT_TURN
            continue
        kib = weights * constants["COLUMNS"] * constants["BLOCK"] / 1024
        most = 45 if constants["COLUMNS"] == 16 else 33 if is_made else 22
        bounds["instructions of a KiB of weights"] = turn.total() / kib, most
    return bounds


def launches_of(models: Sequence[str], rows: Sequence[int], form: Form) -> list[Launch]:
    """Return one launch for each machine code in the ticks of these models, over each number of rows."""
    sizes = published_sizes()
    return distinct(
        stage for model in models for count in rows for stage in traced(sizes[model], form, count).values()
    )


def line(launch: Launch, code: MachineCode) -> str:
    """Return a line of the table."""
    shape = " ".join(f"{name}={value}" for name, value in launch.constants.items() if value is not None)
    loops = " + ".join(str(turn.total()) for turn in code.loops)
    return (
        f"{launch.name:18} {code.registers:4} regs {code.warps:3} warps {code.shared_bytes:7} B shared "
        f"{code.straight.total():5} straight, loops {loops or '-':16} {code.barriers:3} barriers  {shape}"
    )


def main(argv: Sequence[str]) -> int:
    """Print a line for each machine code, followed by exceeded limits; returns 1 if there are any."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.gpu_kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", nargs="+", choices=published_sizes(), default=["moshi-7b"])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--capability", nargs="+", type=int, default=[90])
    parser.add_argument("--kernel", nargs="+", help="these only; default: all")
    parser.add_argument("--bits", type=int, choices=(8, 4), default=8, help="of weights")
    parser.add_argument("--kv", type=KVForm, choices=KVForm, default=KVForm.INT8, help="keys and values")
    options = parser.parse_args(argv)
    found = 0
    launches = launches_of(options.model, options.rows, Form(options.bits, options.kv))
    for capability in options.capability:
        print(f"compute capability {capability / 10:.1f}")
        for launch in sorted(launches, key=lambda launch: launch.name):
            if options.kernel and launch.name not in options.kernel:
                continue
            with tempfile.TemporaryDirectory() as folder:
                code = machine_code(launch.compiled(GPUTarget("cuda", capability, 32)), Path(folder))
            wrong = list(faults(launch, code))
            found += bool(wrong)
            print(line(launch, code), *wrong, sep="\n    ", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
