"""What holds for every test: its tier, one thread, no skips, and the same generated examples on every run."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

NO_RHVOICE = "RHVoice is not installed; it is no package of Debian 12"
NO_INDEX = "the package index cannot be reached, so what it offers is not resolved"
ALLOWED_SKIPS: frozenset[str] = frozenset({NO_RHVOICE, NO_INDEX})
"""Reasons, word for word, for which a test may be skipped or expected to fail."""

FAST = ("fast", "product")
PRODUCT = ("product",)
LAB = ("lab",)
TIERS: Mapping[str, Sequence[str]] = {
    ".": PRODUCT,
    "agent": FAST,
    "audio": FAST,
    "backends": PRODUCT,
    "canary": FAST,
    "clients": PRODUCT,
    "compose": PRODUCT,
    "docs": PRODUCT,
    "engine": FAST,
    "ipc": FAST,
    "lab/bench": LAB,
    "lab/tools": PRODUCT,
    "lab/train": LAB,
    "models": FAST,
    "protocol": FAST,
    "quantize": PRODUCT,
    "repo": PRODUCT,
    "serve": FAST,
    "stock": PRODUCT,
    "supervisor": FAST,
    "support": PRODUCT,
    "web": PRODUCT,
}
"""The markers of the tests in tests/NAME, and for ``lab/NAME`` of those in lab/tests/NAME.

A module whose own marker is ``product`` is that and nothing else.
"""

LONG = ("web", "stock", "docs", "lab/bench")
"""Folders with tests of up to a minute: they come first, so that no worker has one left at the end."""

MISPLACED = pytest.StashKey[str]()
"""Why a test is in no tier."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""A worker of pytest-xdist has one core; small models are slower on more threads, and round differently."""

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("same")


def _folder(path: Path, config: pytest.Config) -> str:
    """The folder of ``tests`` that a path is in, or ``lab/`` and that of ``lab/tests``; "." is ``tests``."""
    inside = path.relative_to(config.rootpath).parts
    room = "lab/" if inside[:2] == ("lab", "tests") else ""
    inside = inside[2:] if room else inside[1:] if inside[:1] == ("tests",) else inside
    return room + inside[0] if len(inside) > 1 else "."


def pytest_configure(config: pytest.Config) -> None:
    for name in THREADS:
        os.environ.setdefault(name, "1")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave folders unread that have no test of the tier that is run."""
    tier = config.option.markexpr
    if tier not in ("fast", "lab") or collection_path.suffix != ".py":
        return None
    return tier not in TIERS.get(_folder(collection_path, config), (tier,)) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every test its tier, long ones first; one that is misplaced is the product's, and fails there."""
    for item in items:
        folder = _folder(item.path, config)
        own = {mark.name for mark in item.iter_markers()} & {*FAST, *LAB}
        if folder not in TIERS:
            item.stash[MISPLACED] = f"{item.path.parent.name} has no tier; name it in TIERS of conftest.py"
        elif own - {*PRODUCT}:
            item.stash[MISPLACED] = f"a marker {own - {*PRODUCT}}; only TIERS of conftest.py gives it"
        for name in PRODUCT if own else TIERS.get(folder, PRODUCT):
            item.add_marker(name)
    items.sort(key=lambda item: _folder(item.path, config) not in LONG)


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: a search for garbage among them keeps every thread waiting."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if MISPLACED in item.stash:
        pytest.fail(item.stash[MISPLACED], pytrace=False)


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip, an expected failure or an unexpected pass into a failure that says why."""
    expected = getattr(report, "wasxfail", None)
    if expected is None and not report.skipped:
        return
    skipped_at = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, "Skipped: ")
    reason = (expected if expected is not None else skipped_at[2]).removeprefix("Skipped: ")
    if reason in ALLOWED_SKIPS:
        return
    if expected is not None:
        del report.wasxfail
    report.outcome = "failed"
    report.longrepr = f"a skip that conftest.py does not allow: {reason or 'no reason given'}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip(report)
    return report
