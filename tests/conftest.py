"""What holds for every test: a skip is a failure, and generated examples are the same on every run."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import settings

NO_RHVOICE = "RHVoice is not installed; it is no package of Debian 12"
ALLOWED_SKIPS: frozenset[str] = frozenset({NO_RHVOICE})
"""Reasons, word for word, for which a test may be skipped or expected to fail."""

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("same")


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
    report.longrepr = f"a skip that tests/conftest.py does not allow: {reason or 'no reason given'}"


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
