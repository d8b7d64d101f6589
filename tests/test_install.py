"""Commands in messages can be typed as they are: they install the missing package, or run antiphon."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from antiphon.errors import MissingExtraError
from antiphon.install import antiphon_command, install_command, requirements_of
from tests.repo.tracked import ROOT

DECLARED = [
    "aiohttp>=3.11",
    "tomli>=2; python_version < '3.11'",
    "torch>=2.9; extra == 'torch'",
    "mlx>=0.29; (sys_platform == 'darwin') and extra == 'mlx'",
    'mlx[cpu]>=0.29; (sys_platform == "linux") and extra == "mlx"',
]


def test_a_checkout_installs_the_extra_with_its_pins() -> None:
    error = MissingExtraError("a plot", extra="plot", module="matplotlib")
    assert str(error) == (
        "a plot needs the Python module 'matplotlib', which is not installed; install it with: "
        f"{sys.executable} -m pip install -c {ROOT}/constraints.txt -e '{ROOT}[plot]'"
    )


def test_antiphon_is_named_as_it_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By its path below or outside the working directory, or by its name where PATH finds this script."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a b" / "bin" / "python"))
    assert antiphon_command("models") == "antiphon models"  # no script is installed
    script = tmp_path / "a b" / "bin" / "antiphon"
    _program(script)
    assert antiphon_command("models") == f"'{script}' models"
    monkeypatch.chdir(tmp_path / "a b")
    assert antiphon_command("models") == "bin/antiphon models"
    monkeypatch.chdir(tmp_path / "a b" / "bin")
    assert antiphon_command("models") == "./antiphon models"
    monkeypatch.chdir(tmp_path)
    assert antiphon_command("models") == "'a b/bin/antiphon' models"
    _program(tmp_path / "other" / "antiphon")
    monkeypatch.setenv("PATH", f"{tmp_path / 'other'}")
    assert antiphon_command("models") == "'a b/bin/antiphon' models"
    monkeypatch.setenv("PATH", f"{tmp_path / 'a b' / 'bin'}")
    assert antiphon_command("models") == "antiphon models"


def _program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def _without_pip(monkeypatch: pytest.MonkeyPatch, folder: Path, *programs: str) -> None:
    """A Python without pip, and these programs alone on the path."""
    monkeypatch.setattr("antiphon.install.find_spec", {"pip": None}.__getitem__)
    for name in programs:
        _program(folder / name)
    monkeypatch.setenv("PATH", str(folder))


def test_without_pip_uv_installs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _without_pip(monkeypatch, tmp_path, "uv")
    assert install_command("plot") == (
        f"uv pip install --python {sys.executable} -c {ROOT}/constraints.txt -e '{ROOT}[plot]'"
    )


def test_without_pip_and_uv_the_image_with_torch_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _without_pip(monkeypatch, tmp_path)
    assert str(MissingExtraError("a plot", extra="plot", module="matplotlib")) == (
        "a plot needs the Python module 'matplotlib', which is not installed; install it with: "
        "the image antiphon:cpu-torch, or one built with --build-arg EXTRAS=plot "
        "(deploy/docker/cpu.Dockerfile): pip and uv are missing here"
    )


def test_moshi_is_installed_without_the_pins_that_exclude_it() -> None:
    assert install_command("reference") == f"{sys.executable} -m pip install -e '{ROOT}[reference]'"


def test_the_base_is_no_extra() -> None:
    assert install_command("").endswith(f"/constraints.txt -e {ROOT}")


def test_a_folder_with_a_space_is_quoted(tmp_path: Path) -> None:
    root = tmp_path / "my checkout"
    root.mkdir()
    (root / "pyproject.toml").touch()
    words = shlex.split(install_command("torch", root=root))
    assert words[-4:] == ["-c", f"{root}/constraints.txt", "-e", f"{root}[torch]"]


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ("", ["aiohttp>=3.11", 'tomli>=2; python_version < "3.11"']),
        ("torch", ["torch>=2.9"]),
        ("mlx", ['mlx>=0.29; sys_platform == "darwin"', 'mlx[cpu]>=0.29; sys_platform == "linux"']),
        ("talk", []),
    ],
)
def test_the_requirements_of_an_extra_keep_their_other_markers(extra: str, found: list[str]) -> None:
    assert requirements_of(extra, DECLARED) == found


def test_a_wheel_installs_what_it_declares(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = shlex.split(install_command("torch", root=tmp_path))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert sorted(words[4:]) == sorted(project["optional-dependencies"]["torch"])
