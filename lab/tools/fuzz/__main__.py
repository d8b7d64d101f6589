"""Fuzz the readers of what comes from elsewhere, guided by the code that each input reaches.

    python -m lab.tools.fuzz [TARGET...] [--executions N] [--keep]

Every input of the corpus first, then mutations of what reached new code (atheris, over libFuzzer). A finding
ends its target: the input and the error are shown, and the file that has it is named. ``--keep`` puts
inputs that reach new lines into the corpus. Exits with 1 where there is a finding.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.tools.fuzz.growth import grown
from lab.tools.fuzz.target import read_corpus, write_corpus
from lab.tools.fuzz.targets import TARGETS

EXECUTIONS: Final = 100_000
INPUT_S: Final = 10
"""An input that takes longer is a finding."""

MEMORY_MB: Final = 2048
"""Of the fuzzing process, most of which is what it has imported."""

TELL_S: Final = 5.0
_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_.\-]{2,31}")
_PROGRESS = re.compile(r"^#(\d+)\s+\w+.*?cov: (\d+)")
_ENDED_BY_CTRL_C: Final = 130


@dataclass(slots=True)
class Progress:
    """How far a target is."""

    name: str
    executions: int = 0
    reached: int = 0
    told_s: float = 0.0

    def read(self, line: str) -> None:
        """A line of libFuzzer's, most of which say how far it is."""
        found = _PROGRESS.match(line)
        if found is None:
            return
        self.executions, self.reached = int(found[1]), int(found[2])
        if time.monotonic() - self.told_s > TELL_S:
            self.told_s = time.monotonic()
            self.tell()

    def tell(self) -> None:
        """One line."""
        print(f"{self.name:<12} {self.executions:>10,} executions, {self.reached} edges", flush=True)


def command(name: str, folder: Path, options: Sequence[str]) -> list[str]:
    """The fuzzing process of a target over a folder of inputs."""
    module = TARGETS[name].read.__module__
    return [sys.executable, "-u", "-m", "lab.tools.fuzz.guided", module, name, *options, str(folder)]


def dictionary(corpus: Sequence[bytes]) -> str:
    """The words of a corpus, for libFuzzer to put into inputs: no chance finds the name of a field."""
    words = {word.decode("ascii") for data in corpus for word in _WORD.findall(data)}
    return "".join(f'"{word}"\n' for word in sorted(words))


def fuzz(name: str, executions: int, seed: int, findings: Path, *, keeps: bool) -> bool:
    """Fuzz one target; whether it held."""
    with tempfile.TemporaryDirectory(prefix="antiphon-fuzz-") as temporary:
        folder = Path(temporary) / "inputs"
        folder.mkdir()
        corpus = read_corpus(name)
        for number, data in enumerate(corpus):
            (folder / f"{number:04}").write_bytes(data)
        options = [f"-runs={executions}", f"-seed={seed}", f"-timeout={INPUT_S}"]
        if words := dictionary(corpus):  # libFuzzer takes no empty file
            (Path(temporary) / "words").write_text(words, encoding="ascii")
            options.append(f"-dict={temporary}/words")
        options += [f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={findings}/{name}-"]
        progress, last = Progress(name), list[str]()
        begun_s = time.monotonic()
        with subprocess.Popen(
            command(name, folder, options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    progress.read(line)
                    last = [*last[-60:], line]
            except KeyboardInterrupt:
                process.kill()
                progress.tell()
                raise
        progress.tell()
        print(f"{name:<12} {time.monotonic() - begun_s:.0f} s, exit {process.returncode}", flush=True)
        if process.returncode:
            print("".join(last), file=sys.stderr)
            return False
        if keeps:
            found = (path.read_bytes() for path in folder.iterdir())
            kept = write_corpus(name, grown(TARGETS[name], corpus, found))
            print(f"{name:<12} {kept} inputs in the corpus, {len(corpus)} before", flush=True)
    return True


def main(argv: list[str]) -> int:
    """Fuzz the targets named, or all."""
    parser = argparse.ArgumentParser(description="Fuzz the readers of what comes from elsewhere.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"[all]: {', '.join(TARGETS)}")
    parser.add_argument("--executions", type=int, default=EXECUTIONS, help="of each target [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations [%(default)s]")
    parser.add_argument("--keep", action="store_true", help="put what reached new lines into the corpus")
    parser.add_argument("--findings", type=Path, default=Path("out/fuzz"), help="a folder [%(default)s]")
    args = parser.parse_args(argv)
    unknown = [name for name in args.targets if name not in TARGETS]
    if unknown:
        parser.error(f"there is no target {unknown[0]}; there are: {', '.join(TARGETS)}")
    args.findings.mkdir(parents=True, exist_ok=True)
    try:
        held = [
            fuzz(name, args.executions, args.seed, args.findings, keeps=args.keep)
            for name in args.targets or TARGETS
        ]
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _ENDED_BY_CTRL_C
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
