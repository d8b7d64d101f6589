"""The wheel holds all that a server needs: nothing may live only in the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.house.tracked import ROOT, tracked_files

SOURCES = {"server": "antiphon", "clients": "antiphon_client", "quantize": "antiphon_quantize"}

FROM_THE_WHEEL = """
import sys
from pathlib import Path
unpacked = Path(sys.argv[1])
sys.path.insert(0, str(unpacked))

import antiphon_client
import antiphon_quantize
from antiphon.cli import run
from antiphon.models.builtin import BUILTIN
from antiphon.models.catalog import load_checkpoint
from antiphon.serve.static import web_root
from antiphon_quantize.recipe import load_recipe

assert web_root() == unpacked / "antiphon" / "_web", web_root()
assert BUILTIN
for name in BUILTIN:
    checkpoint = load_checkpoint(name)
    assert checkpoint.root.is_relative_to(unpacked), checkpoint.root
    for path in checkpoint.files.values():
        assert path.is_relative_to(unpacked) and path.is_file(), path
assert Path(antiphon_client.__file__).is_relative_to(unpacked)
assert load_recipe("torch", "int8").quantize
assert Path(antiphon_quantize.__file__).is_relative_to(unpacked)
assert run(["--version"]) == 0
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    build = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert build.returncode == 0, build.stderr
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
    assert "antiphon = antiphon.cli:main" in archive.read(info["entry_points.txt"]).decode()


def test_what_is_built_in_loads_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    command = [sys.executable, "-c", FROM_THE_WHEEL, str(tmp_path)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
