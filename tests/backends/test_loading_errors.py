"""Inconsistent model files raise a model error, whatever the underlying exception."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.backends.registry import make_backend
from antiphon.errors import CheckpointFormatError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import as_checkpoint_error
from tests.support.make_checkpoint import make_checkpoint

SAID = r"cannot be loaded: its weights and config|model.safetensors: .* the configuration|tensors missing"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("misfits") / "moshi", kind="moshi")


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize(
    "change", [{"depformer_dim": "x"}, {"text_card_out": 7}, {"depformer_weights_per_step": False}]
)
def test_a_model_that_does_not_fit_itself_cannot_be_loaded(
    backend: str, change: dict[str, Any], sound: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(sound, tmp_path / "broken")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    checkpoint = load_checkpoint(str(folder))
    with pytest.raises(CheckpointFormatError, match=SAID):
        make_backend(backend, checkpoint, slots=1, device="cpu")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("full"), UnsupportedError("not this"), KeyboardInterrupt()]
)
def test_what_is_no_misfit_is_not_called_one(error: BaseException) -> None:
    with pytest.raises(type(error)), as_checkpoint_error("model", torch.OutOfMemoryError):
        raise error


def test_the_cause_is_told_in_one_line() -> None:
    with (
        pytest.raises(CheckpointFormatError, match=r"or the program: RuntimeError: size mismatch$"),
        as_checkpoint_error("model"),
    ):
        raise RuntimeError("size\n  mismatch")
