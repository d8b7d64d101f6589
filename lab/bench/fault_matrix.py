"""Measures the effect of each fault on callers, in frames and milliseconds, and the time of the recovery.

    python -m lab.bench.fault_matrix [FAULT...] [--calls N] [--seconds S] [--write]

For each fault a fresh server (the null backend's codec, two front ends, a service manager that restarts it
after a second) serves resumable calls in real time; the fault occurs three seconds later. ``--write`` puts
the table into docs/reliability.md. ``disk_hangs`` mounts a file system of 16 MB, which requires root;
``clock_step`` compiles a library. Rows that cannot run here are skipped and named.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from lab.bench.fault_rows import FAULTS, FOLDER, Fault
from lab.bench.fault_scene import Proxy, Scene, Service, newcomer_ms
from lab.bench.fault_talker import FRAME_S, Fate, Talker
from lab.bench.harness import tell

FAULT_AT_S: Final = 3.0
NEWCOMER_S: Final = 60.0
"""Seconds for which a new caller tries to connect."""

COMMON: Final = ("--slots", "24")
"""Common options: a row for each caller of any fault, and the queues of a server without options."""

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- faults -->", "<!-- end of faults -->"
HEAD: Final = (
    "| fault | what is done | lost | late | longest silence: p50, most, ms | resumed | ended | "
    "answer to a new caller, ms |\n|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one fault: the fates of its calls, the wait of a new caller, and further facts."""

    fault: Fault
    fates: tuple[Fate, ...]
    newcomer_ms: float | None
    facts: tuple[str, ...]

    def total(self, name: str) -> int:
        """Return the sum of a count over all calls."""
        return sum(getattr(fate, name) for fate in self.fates)

    def line(self) -> str:
        """Return the row of the table in Markdown."""
        silences = sorted(fate.silence_ms for fate in self.fates)
        ends = Counter(fate.ended.split()[0].rstrip(":") for fate in self.fates if fate.ended)  # the code
        ended = ", ".join(f"{number}: {code}" for code, number in ends.most_common(2)) or "none"
        new = "never" if self.newcomer_ms is None else f"{self.newcomer_ms:.0f}"
        cells = [
            f"`{self.fault.name}`",
            self.fault.words,
            str(self.total("lost")),
            str(self.total("late")),
            f"{silences[len(silences) // 2]:.0f}, {silences[-1]:.0f}",
            str(sum(fate.resumed > 0 for fate in self.fates)),
            ended,
            new,
        ]
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


async def run_fault(fault: Fault, folder: Path, *, calls: int, seconds: float, is_calm: bool = False) -> Row:
    """Run one row: a server, its calls, the fault, and a caller who connects during the fault."""
    options = [option.replace(FOLDER, str(folder)) for option in fault.options]
    environment = fault.environment(folder)
    service = Service(*COMMON, *options, faults=fault.faults, environment=environment, is_calm=is_calm)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(service.running())
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        )
        proxy = None if fault.delay_s is None else Proxy(service.port, delay_s=fault.delay_s)
        url = service.url if proxy is None else await stack.enter_async_context(proxy.running())
        frames = round(seconds / FRAME_S)
        talkers = [Talker(http, url, seed, frames, query=fault.query) for seed in range(calls)]
        running = [asyncio.ensure_future(talker.run()) for talker in talkers]
        scene = Scene(service, http, talkers, folder, proxy)
        for talker, call in zip(talkers, running, strict=True):
            begun = asyncio.ensure_future(talker.begun.wait())
            await asyncio.wait((begun, call), return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
        await asyncio.sleep(FAULT_AT_S)
        await fault.comes(scene)
        until_s = time.monotonic() + NEWCOMER_S
        injecting = asyncio.ensure_future(fault.inject(scene))
        await asyncio.sleep(0.05)
        new = asyncio.ensure_future(newcomer_ms(url, until_s))
        fates = await asyncio.gather(*running)
        await injecting
        newcomer = await new
        await fault.after(scene)
        if service.exits:
            scene.facts.append(f"exit {service.exits[0]}, started {service.starts} times")
        scene.facts += [f"{sum(fate.foreign for fate in fates)} foreign replies"] * any(
            f.foreign for f in fates
        )
    return Row(fault, tuple(fates), newcomer, tuple(scene.facts))


@contextmanager
def folder_of(fault: Fault) -> Iterator[Path | None]:
    """Yield a folder for a row of the table; None if this machine cannot run it."""
    with tempfile.TemporaryDirectory(prefix="antiphon-faults-") as temporary:
        folder = Path(temporary)
        if fault.name == "clock_step" and shutil.which("cc") is None:
            yield None
        elif fault.name != "disk_hangs":
            yield folder
        else:
            with _mounted(folder) as mounted:
                yield mounted


@contextmanager
def _mounted(folder: Path) -> Iterator[Path | None]:
    """A separate file system, which can be frozen."""
    image, mounted = folder / "image", folder / "mounted"
    mounted.mkdir()
    image.write_bytes(bytes(16 << 20))
    commands = (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(mounted)])
    if not all(_succeeds(command) for command in commands):
        yield None
        return
    try:
        yield mounted
    finally:
        _succeeds(["umount", "--lazy", str(mounted)])


def _succeeds(command: Sequence[str]) -> bool:
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


def table(rows: Sequence[Row], left_out: Sequence[str], command: str) -> str:
    """Return the table in Markdown, with the command that makes it and the rows that were left out."""
    calls, due = (len(rows[0].fates), rows[0].total("due")) if rows else (0, 0)
    lines = [f"`{command}`: {calls} calls with {due} frames together for each fault.", "", HEAD]
    lines += [row.line() for row in rows]
    if left_out:
        lines += ["", f"Not run there: {', '.join(left_out)}."]
    return "\n".join(lines)


def write(text: str) -> None:
    """Write the table between its marks in docs/reliability.md."""
    document = DOCUMENT.read_text(encoding="utf-8")
    between = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    DOCUMENT.write_text(between.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", document), encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    """Run the named faults, or all; print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"[all]: {', '.join(FAULTS)}")
    parser.add_argument("--calls", type=int, default=8, help="calls at once [%(default)s]")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each call [%(default)s]")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.faults) - set(FAULTS))
    if unknown:
        parser.error(f"there is no fault {unknown[0]}; there are: {', '.join(FAULTS)}")
    rows: list[Row] = []
    left_out: list[str] = []
    has_failed = False
    for name in args.faults or FAULTS:
        with folder_of(FAULTS[name]) as folder:
            if folder is None:
                left_out.append(f"`{name}`, which needs {FAULTS[name].needs}")
                continue
            try:
                row = asyncio.run(run_fault(FAULTS[name], folder, calls=args.calls, seconds=args.seconds))
            except Exception as error:  # a boundary: the other rows are measured anyway
                left_out.append(f"`{name}`, which failed with {error!r}")
                has_failed = True
                continue
            rows.append(row)
            tell("; ".join((row.line(), *row.facts)))
    text = table(rows, left_out, " ".join(["python -m lab.bench.fault_matrix", *argv]))
    print(text)
    if args.write:
        write(text)
    return int(has_failed or not rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
