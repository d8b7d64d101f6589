from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.backends.base import Backend
from tests.backends.pocket.small import small_backend
from tests.support.make_pocket_checkpoint import make_pocket_checkpoint


@pytest.fixture(scope="session")
def pocket_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pocket_checkpoint(tmp_path_factory.mktemp("pocket") / "small")


@pytest.fixture(scope="module")
def backend(pocket_folder: Path) -> Iterator[Backend]:
    made = small_backend(pocket_folder)
    yield made
    made.close()
