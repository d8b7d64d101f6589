"""conftest.py puts every test in one tier, by its folder; a misplaced one fails."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import FAST, LAB, PRODUCT, TIERS
from tests.repo.tracked import ROOT, tracked_files

PASSING = "def test_it(): pass"
MODULES = {
    "tests/test_root.py": PASSING,
    "tests/audio/test_fast.py": PASSING,
    "tests/audio/test_slow.py": f"import pytest\npytestmark = pytest.mark.product\n{PASSING}",
    "tests/web/deep/test_product.py": PASSING,
    "lab/tests/train/test_lab.py": PASSING,
    "lab/tests/bench/test_promise.py": f"import pytest\npytestmark = pytest.mark.product\n{PASSING}",
}


def _run(folder: Path, modules: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest over these modules with the project's settings."""
    for tests in ("tests", "lab/tests"):
        (folder / tests).mkdir(parents=True)
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for name, body in modules.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(body)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.parametrize(
    ("tier", "modules"),
    [
        ("fast", {"fast"}),
        ("product", {"root", "fast", "slow", "product", "promise"}),
        ("lab", {"lab"}),
        ("product and lab or fast and not product or not product and not lab", set()),
    ],
)
def test_a_tier_is_its_folders_less_the_exceptions(tier: str, modules: set[str], tmp_path: Path) -> None:
    run = _run(tmp_path, MODULES, "-m", tier)
    assert set(re.findall(r"^PASSED .*test_(\w+)\.py::test_it$", run.stdout, re.MULTILINE)) == modules, (
        run.stdout
    )


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_misplaced_test_fails(workers: str, tmp_path: Path) -> None:
    marked = "import pytest\npytestmark = pytest.mark.{}\n" + PASSING
    modules = {
        "tests/web/test_marked.py": marked.format("fast"),
        "tests/audio/test_marked.py": marked.format("lab"),
        "tests/new/test_it.py": marked.format("product"),
    }
    run = _run(tmp_path, modules, "-m", "product", "-n", workers)
    assert "3 errors in" in run.stdout
    for said in (
        "a marker {'fast'}; only TIERS of conftest.py gives it",
        "a marker {'lab'}; only TIERS of conftest.py gives it",
        "new has no tier; name it in TIERS of conftest.py",
    ):
        assert said in run.stdout


def test_every_folder_is_in_the_product_or_in_the_lab() -> None:
    inside = {path.relative_to(ROOT).parts for path in tracked_files() if path.name.startswith("test_")}
    folders = {parts[1] if len(parts) > 2 else "." for parts in inside if parts[0] == "tests"}
    folders |= {f"lab/{parts[2]}" for parts in inside if parts[:2] == ("lab", "tests")}
    assert folders == TIERS.keys()
    assert set(TIERS.values()) == {FAST, PRODUCT, LAB}
