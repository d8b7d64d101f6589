"""Untrusted model folders: their files must be inside, unless allowed by the owner."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from antiphon.config import ModelConfig
from antiphon.errors import CheckpointFormatError
from antiphon.models.catalog import builtin_folder, load_checkpoint
from antiphon.serve.hosting.model_names import name_models


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, whole, beside a file that is none of its business."""
    copied = tmp_path / "model"
    shutil.copytree(builtin_folder("tiny"), copied)
    codec = load_checkpoint("tiny").file("mimi")
    shutil.copy(codec, copied / "mimi.safetensors")
    shutil.copy(codec, tmp_path / "secret.safetensors")
    return copied


def rename(folder: Path, name: str) -> None:
    """Let the folder's codec be the file of this name."""
    manifest = folder / "antiphon.json"
    values = json.loads(manifest.read_text())
    values["files"]["mimi"]["path"] = name
    manifest.write_text(json.dumps(values))


def refused(folder: Path, name: str) -> bool:
    """Whether the folder may not name this file; without bounds it may."""
    load_checkpoint(str(folder))
    words = f"names the file '{name}', which lies outside of it; copy it there, or serve with --outside-files"
    with pytest.raises(CheckpointFormatError, match=words):
        name_models([ModelConfig(model=str(folder))])
    return name_models([ModelConfig(model=str(folder), outside_files=True)])[0][1] == "tiny"


def test_a_folder_that_stays_in_itself_is_served(folder: Path) -> None:
    ((_, name, _),) = name_models([ModelConfig(model=str(folder))])
    assert name == "tiny"


def test_a_path_that_leads_out_is_refused(folder: Path) -> None:
    rename(folder, "../secret.safetensors")
    assert refused(folder, "../secret.safetensors")


def test_a_link_that_leads_out_is_refused(folder: Path) -> None:
    rename(folder, "inside.safetensors")
    (folder / "inside.safetensors").symlink_to("../secret.safetensors")
    assert refused(folder, "inside.safetensors")


def test_a_repository_is_not_fetched_for_a_folder(folder: Path) -> None:
    rename(folder, "hf://someone/else/mimi.safetensors")
    with pytest.raises(CheckpointFormatError, match="lies outside of it"):
        name_models([ModelConfig(model=str(folder))])


def test_the_packages_own_models_share_files() -> None:
    ((_, name, _),) = name_models([ModelConfig(model=str(builtin_folder("tiny")))])
    assert name == "tiny"
