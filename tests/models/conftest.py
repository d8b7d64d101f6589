"""Small read-only checkpoints, shared by several test modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.make_checkpoint import make_checkpoint
from tests.support.small_models import KINDS


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One checkpoint of each kind, by kind, in the published layout."""
    root = tmp_path_factory.mktemp("made")
    codec = make_checkpoint(root / "codec", kind="codec", seed=3)
    others = (kind for kind in KINDS if kind != "codec")
    return {"codec": codec} | {kind: make_checkpoint(root / kind, kind=kind, mimi=codec) for kind in others}
