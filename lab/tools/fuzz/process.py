"""The fuzzing process of a target: its arguments, its progress, and its outcome."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.tools.fuzz.target import read_corpus
from lab.tools.fuzz.targets import TARGETS

INPUT_S: Final = 10
"""Seconds; an input that takes longer is a finding."""

MEMORY_MB: Final = 2048
"""MiB of the fuzzing process, most of which is its imports."""

TELL_S: Final = 5.0
LAST_LINES: Final = 60
_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_.\-]{2,31}")
_PROGRESS = re.compile(r"^#(\d+)\s+\w+.*?cov: (\d+)")
_WRITTEN = re.compile(r"Test unit written to (\S+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run; ``finding`` is the file with the input that ended it, "" for none."""

    executions: int
    seconds: float
    finding: str


@dataclass(slots=True)
class Progress:
    """The progress of a target in one run: its executions, the code that it has reached, and the last
    report."""

    name: str
    executions: int = 0
    reached: int = 0
    reported_s: float = 0.0

    def read(self, line: str) -> None:
        """Read a line of libFuzzer's output; most lines report progress."""
        found = _PROGRESS.match(line)
        if found is None:
            return
        self.executions, self.reached = int(found[1]), int(found[2])
        if time.monotonic() - self.reported_s > TELL_S:
            self.reported_s = time.monotonic()
            self.tell()

    def tell(self) -> None:
        """Print the progress in one line."""
        print(f"{self.name:<12} {self.executions:>10,} executions, {self.reached} edges", flush=True)


def command(name: str, folder: Path, options: Sequence[str]) -> list[str]:
    """Return the command of the fuzzing process of a target over a folder of inputs."""
    module = TARGETS[name].read.__module__
    return [sys.executable, "-u", "-m", "lab.tools.fuzz.guided", module, name, *options, str(folder)]


def dictionary(corpus: Sequence[bytes]) -> str:
    """Return libFuzzer's dictionary of a corpus's words: random mutation does not find field names."""
    words = {word.decode("ascii") for data in corpus for word in _WORD.findall(data)}
    return "".join(f'"{word}"\n' for word in sorted(words))


def fuzz(name: str, executions: int, seed: int, findings: Path, folder: Path, *, most_s: int = 0) -> Outcome:
    """Fuzz one target over the corpus and ``folder``, to which inputs that reach new code are added.

    It ends after ``most_s`` seconds, if that is not 0.
    """
    inputs, corpus = folder / name, read_corpus(name)
    inputs.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(corpus):
        (inputs / f"{number:04}").write_bytes(data)
    options = [f"-runs={executions}", f"-seed={seed}", f"-timeout={INPUT_S}"]
    options += [f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={findings}/{name}-"]
    options += [f"-max_total_time={most_s}"]
    if words := dictionary(corpus):  # libFuzzer rejects an empty file
        path = folder / f"{name}.words"
        path.write_text(words, encoding="ascii")
        options.append(f"-dict={path}")
    progress, last, begun_s = Progress(name), list[str](), time.monotonic()
    with subprocess.Popen(
        command(name, inputs, options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                progress.read(line)
                last = [*last[-LAST_LINES:], line]
        except KeyboardInterrupt:
            process.kill()
            progress.tell()
            raise
    progress.tell()
    seconds, said = time.monotonic() - begun_s, "".join(last)
    print(f"{name:<12} {seconds:.0f} s, exit {process.returncode}", flush=True)
    if not process.returncode:
        return Outcome(progress.executions, seconds, "")
    print(said, file=sys.stderr)
    written = _WRITTEN.search(said)
    finding = written[1] if written else f"exit {process.returncode}"
    return Outcome(progress.executions, seconds, finding)
