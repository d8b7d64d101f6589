"""Unit tests of the page's modules in Node.js."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.repo.tracked import ROOT
from tests.support.node import run_node_tests

FILES = sorted((Path(__file__).parent / "unit").glob("*.test.js"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".test.js"))
def test_in_node(path: Path) -> None:
    run = run_node_tests([path], os.environ, 100)
    assert run.is_green, run.report
    assert run.tests >= 3


def test_what_is_installed_is_locked_without_a_registry() -> None:
    lock = (ROOT / "package-lock.json").read_text()
    assert "resolved" not in lock
    assert lock.count("integrity") == lock.count('"node_modules/')
