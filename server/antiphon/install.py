"""Commands that a user can type here: the installation of an extra, and ``antiphon`` itself."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import which

UNPINNED = frozenset({"reference"})
"""Extras that constraints.txt excludes: moshi requires older torch, numpy and aiohttp than the pins."""

_WITH_EXTRA = re.compile(
    r"""(?P<what>[^;]+?)\s*;\s*(?:\((?P<marker>.+)\) and )?extra == ['"](?P<extra>[^'"]+)['"]"""
)


def antiphon_command(arguments: str) -> str:
    """The command line that runs ``antiphon ARGUMENTS`` in the working directory.

    It has the path of the script next to the running Python, unless the PATH finds this script, or there is
    none.
    """
    script, found = Path(sys.executable).with_name("antiphon"), which("antiphon")
    if not script.exists() or (found and script.samefile(found)):
        return f"antiphon {arguments}"
    with suppress(OSError, ValueError):  # no working directory, or the script is not below it
        script = script.relative_to(Path.cwd())
    # A shell looks for a bare name on the PATH only.
    path = str(script) if len(script.parts) > 1 else f"./{script}"
    return f"{shlex.quote(path)} {arguments}"


def make_goal() -> str:
    """The goal of the Makefile that runs this command; "" without make."""
    return os.environ.get("ANTIPHON_MAKE_GOAL", "")


def interrupted_code() -> int:
    """Exit code after Ctrl-C: 130, or 0 under make, because make reports any other code as an error and
    already ends by the signal.
    """
    return 0 if make_goal() else 130


def install_command(extra: str, *, root: Path = Path(__file__).parents[2]) -> str:
    """The command that installs ``extra`` into the running Python; "" means the base installation.

    In a checkout at ``root``, it installs the extra with its pins. Elsewhere it installs the requirements
    that the wheel declares for the extra, because no package index has Antiphon. Without pip the command uses
    uv. Without both, as in the images, the result is the name of an image.
    """
    pip = _installer()
    if pip is None:
        other = f", or one built with --build-arg EXTRAS={extra}" if extra else ""
        return (
            f"the image antiphon:cpu-torch{other} (deploy/docker/cpu.Dockerfile): pip and uv are missing here"
        )
    if (root / "pyproject.toml").is_file():
        pins = "" if extra in UNPINNED else f" -c {shlex.quote(str(root / 'constraints.txt'))}"
        return f"{pip}{pins} -e {shlex.quote(f'{root}[{extra}]' if extra else str(root))}"
    return f"{pip} {' '.join(map(shlex.quote, requirements_of(extra, _declared())))}"


def _installer() -> str | None:
    """The installer for the running Python; None without pip and uv."""
    python = shlex.quote(sys.executable)
    if find_spec("pip") is not None:
        return f"{python} -m pip install"
    return f"uv pip install --python {python}" if which("uv") else None


def requirements_of(extra: str, declared: Iterable[str]) -> list[str]:
    """The ``declared`` requirements of a distribution that belong to ``extra``; "" means the base
    installation.
    """
    found = []
    for line in declared:
        match = _WITH_EXTRA.fullmatch(line)
        if (match["extra"] if match else "") != extra:
            continue
        marker = f"; {match['marker']}" if match and match["marker"] else ""
        found.append(f"{match['what'] if match else line}{marker}".replace("'", '"'))
    return found


def _declared() -> list[str]:
    """The requirements of the installed distribution. Only a failure calls this, so a normal start does not
    need the import.
    """
    from importlib.metadata import requires

    return requires("antiphon") or []
