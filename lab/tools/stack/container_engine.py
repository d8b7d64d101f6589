"""The programs buildah, podman and podman-compose with separate storage; no container service is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.stack.composefile import ROOT

COMPOSE = ("podman-compose==1.6.0", "spdx-tools==0.8.5")
"""Packages that pip installs in addition to Debian's programs: the compose, and the checker of bills of
materials."""

PROGRAMS = {
    "buildah": "buildah",
    "podman": "podman",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "catatonit": "catatonit",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/lib/cni/dnsname": "golang-github-containernetworking-plugin-dnsname",
}
"""Programs that must be installed, with their packages of Debian."""

SAME_WORDS = "lab/tools/stack/same_words.yaml"

STORAGE = """[storage]
driver = "{driver}"
graphroot = "{work}/storage"
runroot = "{work}/run"
"""

# crun refuses hybrid cgroups. Limits are below those of the machine, which a container cannot raise.
CONTAINERS = """[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
"""


class StackError(Exception):
    """A command of the stack failed, or had another result than expected."""


@dataclass(frozen=True)
class ContainerEngine:
    """The container programs with their settings in ``work``; ``environment`` is their environment."""

    work: Path
    environment: Mapping[str, str]

    def run(self, *command: str, timeout_s: float = 900.0) -> str:
        """Run a command in the repository's root and return its output.

        Raises:
            StackError: it failed; the message ends with the end of its output.
        """
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            said = (done.stdout + done.stderr)[-2000:]
            raise StackError(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
        return done.stdout.strip()

    def podman(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """Run ``podman ARGUMENTS``; returns its output."""
        return self.run("podman", *arguments, timeout_s=timeout_s)

    def compose(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """Run ``podman-compose ARGUMENTS`` on compose.yaml with deploy/debian.yaml, profile edge; returns its
        output.

        With patient.yaml a busy machine makes calls late, and loses none of their frames; with
        same_words.yaml a call has the same words whatever other calls there are.
        """
        read = ("compose.yaml", "deploy/debian.yaml", "tests/compose/patient.yaml", SAME_WORDS)
        files = [word for file in read for word in ("-f", file)]
        program = str(self.work / "venv" / "bin" / "podman-compose")
        return self.run(
            program, "-p", "antiphon", *files, "--profile", "edge", *arguments, timeout_s=timeout_s
        )

    def timed(self, *command: str) -> float:
        """Run a command; returns its seconds."""
        start_s = time.monotonic()
        self.run(*command, timeout_s=3600.0)
        return time.monotonic() - start_s


def prepare(work: Path, values: Mapping[str, str]) -> ContainerEngine:
    """Write the settings and install podman-compose; ``values`` are the variables of compose.yaml.

    Raises:
        StackError: a program is missing, or this is not root.
    """
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if missing:
        raise StackError(f"apt-get install --no-install-recommends {' '.join(missing)}")
    if os.geteuid() != 0:
        raise StackError("networks and mounts of containers are root's: type sudo make stack")
    work.mkdir(parents=True, exist_ok=True)
    overlay = "overlay" in Path("/proc/filesystems").read_text()
    (work / "storage.conf").write_text(STORAGE.format(driver="overlay" if overlay else "vfs", work=work))
    (work / "containers.conf").write_text(CONTAINERS)
    environment = {
        **os.environ,
        **values,
        "CONTAINERS_STORAGE_CONF": str(work / "storage.conf"),
        "CONTAINERS_CONF": str(work / "containers.conf"),
    }
    environment.pop("STORAGE_DRIVER", None)
    engine = ContainerEngine(work, environment)
    if not (work / "venv" / "bin" / "pyspdxtools").exists():
        engine.run(sys.executable, "-m", "venv", str(work / "venv"))
        engine.run(str(work / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", *COMPOSE)
    return engine


def pip_settings(engine: ContainerEngine, left: Sequence[str] = ()) -> list[str]:
    """Return options of ``buildah bud`` that give a build the settings of pip except ``left``.

    Empty mount points remain in the image.
    """
    seen: dict[str, str] = {}
    listed = engine.run(sys.executable, "-m", "pip", "config", "list").splitlines()
    for line in reversed(listed):  # pip's own order: later settings have priority
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name not in left:
            seen.setdefault(name, value.strip("'\""))
    file = engine.work / "pip.conf"
    file.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in seen.items()))
    lent = {str(file): "/etc/pip.conf"}
    for word in " ".join(seen.values()).split():
        path = Path(word.removeprefix("file://"))
        if path.is_absolute() and path.exists():
            # An index refers to the files next to it.
            place = str(path.parent if word.startswith("file://") else path)
            lent[place] = place
    return [option for source, target in lent.items() for option in ("-v", f"{source}:{target}:ro")]


def lines(text: str) -> Sequence[str]:
    """Return the lines that are not empty."""
    return [line for line in text.splitlines() if line.strip()]
