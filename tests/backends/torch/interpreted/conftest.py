"""These tests run in a separate process, on Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.torch.interpreter import language_patched_once


@pytest.fixture(autouse=True, scope="session")
def _language_patched_once() -> Iterator[None]:
    with language_patched_once():
        yield
