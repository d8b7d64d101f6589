"""The built-in models in one folder each, and back into the packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.models.catalog import load_checkpoint
from antiphon.models.source import BUILTIN
from lab.tools.built_in import SERVER, WEIGHTS, main, place, whole


def test_a_whole_folder_has_weights_and_graphs(tmp_path: Path) -> None:
    whole(tmp_path)
    whole(tmp_path)  # a second run replaces the links
    for name in BUILTIN:
        built_in, one_folder = load_checkpoint(name), load_checkpoint(str(tmp_path / name))
        assert one_folder.absent == {}
        assert one_folder.digest == built_in.digest
        assert one_folder.files.keys() == built_in.files.keys()


def test_a_shipped_folder_goes_into_both_packages(tmp_path: Path) -> None:
    whole(tmp_path / "shipped")
    stale = tmp_path / SERVER / "tiny-tts" / "old.onnx"
    stale.parent.mkdir(parents=True)
    stale.touch()
    place(tmp_path / "shipped" / "tiny-tts", tmp_path)
    server, weights = tmp_path / SERVER / "tiny-tts", tmp_path / WEIGHTS / "tiny-tts"
    assert [path.name for path in weights.iterdir()] == ["model.safetensors"]
    assert {"antiphon.json", "lm.onnx", "voices"} <= {path.name for path in server.iterdir()}
    assert not stale.exists()
    assert (weights / "model.safetensors").read_bytes() == load_checkpoint("tiny-tts").file("lm").read_bytes()


def test_only_built_in_models_are_placed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["place", str(tmp_path / "huge")])
    assert "not named like a built-in model: tiny, tiny-stt, tiny-tts, echo" in capsys.readouterr().err
