"""Every extra resolves from the package index, on other Pythons and on a Mac.

uv resolves for a platform without being on it, markers included.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from conftest import NO_INDEX
from tests.repo.tracked import ROOT
from tests.support.uv import uv

EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
PYTHONS = ("3.11", "3.14")
"""The first and the last: a pin that has files for both has them for those between."""
LINUX = "x86_64-manylinux_2_28"
LINUX_OF_MLX = "x86_64-manylinux_2_35"
"""mlx has no wheels for an older glibc."""
MAC = "aarch64-apple-darwin"
UNPINNED = ("reference",)
"""moshi excludes the pins (see Makefile), and every aiohttp that has files for Python 3.14."""
UNREACHABLE = "error sending request"
"""In every network error of uv; an index that answers with an error has other words."""
TOGETHER = sorted(EXTRAS.difference(UNPINNED, {"mlx"}))
"""Where all resolve together under pins, each does alone: it asks for a part of the same versions."""


def _resolve(requirements: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = ["pip", "compile", "--quiet", "--no-config", "--only-binary=:all:", f"--output-file={os.devnull}"]
    return uv(*words, *options, str(requirements))


def _resolve_project(python: str, platform: str, extras: Sequence[str]) -> None:
    options = [f"--python-version={python}", f"--python-platform={platform}"]
    options += [f"--extra={name}" for name in extras]
    if not set(extras) & set(UNPINNED):
        options.append(f"--constraints={ROOT / 'constraints.txt'}")
    run = _resolve(ROOT / "pyproject.toml", *options)
    assert run.returncode == 0, run.stderr


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The index answers; where it does not, the summary of the run says that these tests did not run."""
    _ask(tmp_path_factory.mktemp("index"))


def _ask(folder: Path, requirement: str = "packaging", url: str | None = None) -> None:
    """Resolve a requirement without dependencies.

    Raises:
        pytest.skip.Exception: the index cannot be reached.
        AssertionError: anything else is wrong.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement}\n")
    run = _resolve(requirements, *([] if url is None else [f"--default-index={url}", "--no-cache"]))
    if UNREACHABLE in run.stderr and "certificate" not in run.stderr:
        pytest.skip(NO_INDEX)
    assert run.returncode == 0, run.stderr


def test_an_index_that_cannot_be_reached_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}/simple"
        with pytest.raises(pytest.skip.Exception, match=NO_INDEX):
            _ask(tmp_path, url=url)


@pytest.mark.parametrize(
    ("requirement", "says"),
    [("packaging ==", "packaging =="), ("packaging", "packaging was not found in the package registry")],
)
def test_every_other_failure_of_uv_fails(tmp_path: Path, requirement: str, says: str) -> None:
    empty = tmp_path / "simple"
    empty.mkdir()
    with pytest.raises(AssertionError, match=says):
        _ask(tmp_path, requirement, empty.as_uri())


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("platform", "extras"),
    [
        pytest.param(LINUX, TOGETHER, id="linux-all-but-mlx"),
        pytest.param(LINUX_OF_MLX, [*TOGETHER, "mlx"], id="linux-all"),
        pytest.param(LINUX, UNPINNED, id="linux-reference"),
        pytest.param(MAC, ["mlx"], id="mac-mlx"),
        pytest.param(MAC, [], id="mac-base"),
    ],
)
def test_the_index_has_what_is_declared_and_pinned(python: str, platform: str, extras: Sequence[str]) -> None:
    _resolve_project("3.13" if extras == UNPINNED and python == "3.14" else python, platform, extras)


@pytest.mark.usefixtures("index")
def test_a_pin_that_torch_excludes_is_found(tmp_path: Path) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text((ROOT / "constraints.txt").read_text().replace("\ntriton==", "\ntriton==3.5.1 #"))
    run = _resolve(
        ROOT / "pyproject.toml",
        "--python-version=3.11",
        f"--python-platform={LINUX}",
        "--extra=torch",
        f"--constraints={pins}",
    )
    assert run.returncode != 0
    assert "triton" in run.stderr
