"""Wheel and sdist contain all files that a server needs, and install."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.repo.tracked import ROOT, tracked_files

SOURCES = {"server": "antiphon", "clients": "antiphon_client", "quantize": "antiphon_quantize"}

FROM_WHAT_IS_INSTALLED = """
import sys
from pathlib import Path
installed, checkout = Path(sys.argv[1]), Path(sys.argv[3])
elsewhere = [path for path in sys.path if "site-packages" in path or not Path(path).is_relative_to(checkout)]
sys.path[:] = [str(installed), *elsewhere]

import antiphon_client
import antiphon_quantize
from antiphon.cli import run
from antiphon.install import install_command
from antiphon.models.source import BUILTIN
from antiphon.models.catalog import load_checkpoint
from antiphon.serve.routes.static import web_root
from antiphon_quantize.recipe import load_recipe

assert web_root() == installed / "antiphon" / "_web", web_root()
assert BUILTIN
for name in BUILTIN:
    checkpoint = load_checkpoint(name)
    assert checkpoint.root.is_relative_to(installed), checkpoint.root
    for path in checkpoint.files.values():
        assert path.is_relative_to(installed) and path.is_file(), path
    assert bool(checkpoint.absent) == (sys.argv[2] == "graphs"), name
assert Path(antiphon_client.__file__).is_relative_to(installed)
assert load_recipe("torch", "int8").quantize
assert Path(antiphon_quantize.__file__).is_relative_to(installed)
assert "constraints.txt" not in install_command("torch") and "torchao" in install_command("torch")
assert run(["--version"]) == 0
"""


PIP_ALONE = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")


def _python(*words: str | Path, cwd: Path) -> None:
    command = [sys.executable, *map(str, words)]
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    _python("-m", "hatchling", "build", "--target", "sdist", "--directory", folder, cwd=ROOT)
    (path,) = folder.glob("antiphon-*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of the sdist, which so proves to hold what a wheel needs."""
    folder = tmp_path_factory.mktemp("wheel")
    _python("-m", "pip", "wheel", *PIP_ALONE, "--wheel-dir", folder, sdist, cwd=folder)
    (path,) = folder.glob("antiphon-*.whl")
    return path


def test_every_source_file_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    expected = {
        path.relative_to(ROOT / root).as_posix()
        for root, package in SOURCES.items()
        for path in tracked_files()
        if path.is_relative_to(ROOT / root / package)
    } | {
        f"antiphon/_web/{path.relative_to(ROOT / 'web' / 'static').as_posix()}"
        for path in tracked_files()
        if path.is_relative_to(ROOT / "web" / "static")
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected
    assert {"antiphon/_web/index.html", "antiphon/py.typed", "antiphon_client/clips/hello.ogg"} <= names


def test_the_wheel_carries_licence_and_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = {name.split(".dist-info/")[1]: name for name in archive.namelist() if ".dist-info/" in name}
    assert "Apache License" in archive.read(info["licenses/LICENSE"]).decode()
    assert "antiphon = antiphon.start:main" in archive.read(info["entry_points.txt"]).decode()


def test_the_sdist_holds_what_the_wheel_is_built_of(sdist: Path) -> None:
    sources = {f"{root}/{package}" for root, package in SOURCES.items()} | {"web/static"}
    files = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"}
    expected = files | {
        relative.as_posix()
        for relative in (path.relative_to(ROOT) for path in tracked_files())
        if any(relative.is_relative_to(source) for source in sources)
    }
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names - {"PKG-INFO"} == expected


def test_what_is_built_in_loads_from_what_pip_installs(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    install = ["-m", "pip", "install", *PIP_ALONE, "--no-compile", "--target", str(installed)]
    _python(*install, wheel, cwd=tmp_path)
    _python("-c", FROM_WHAT_IS_INSTALLED, installed, "graphs", ROOT, cwd=tmp_path)
    _python("-m", "pip", "wheel", *PIP_ALONE, "--wheel-dir", tmp_path, ROOT / "weights", cwd=tmp_path)
    (weights,) = tmp_path.glob("antiphon_weights-*.whl")
    _python(*install, weights, cwd=tmp_path)
    _python("-c", FROM_WHAT_IS_INSTALLED, installed, "weights", ROOT, cwd=tmp_path)


def test_both_wheels_fit_a_package_index(wheel: Path) -> None:
    assert wheel.stat().st_size <= 45e6
    weights = sum(path.stat().st_size for path in (ROOT / "weights").rglob("*.safetensors"))
    assert weights <= 75e6
