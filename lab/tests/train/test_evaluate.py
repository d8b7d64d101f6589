"""The questions with which a model is judged."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lab.train import codec_quality, evaluate
from lab.train.answers import Answer
from lab.train.evaluate import judging_shards
from lab.train.readings import words_in_frames


def test_the_shard_that_chooses_the_best_checkpoint_judges_only_where_it_is_alone(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--held-out --shards 4"):
        judging_shards(tmp_path)
    for name in ("0000.npz", "0001.npz", "0002.npz"):
        (tmp_path / name).touch()
    assert [path.name for path in judging_shards(tmp_path)] == ["0001.npz", "0002.npz"]
    for name in ("0001.npz", "0002.npz"):
        (tmp_path / name).unlink()
    assert [path.name for path in judging_shards(tmp_path)] == ["0000.npz"]


def test_the_bound_of_a_synthesiser_is_its_training_data_after_the_codec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec_quality, "round_trip_from_silence", lambda codec, pcm: codec * pcm)
    answer = Answer(("two", "plus"), (0.0, 0.3), np.linspace(-0.1, 0.1, 16_000, dtype=np.float32))
    np.testing.assert_array_equal(evaluate.after_codec(2, "vera", answer), 2 * answer.pcm)
    words = np.concatenate(words_in_frames(answer))
    np.testing.assert_array_equal(evaluate.after_codec(2, "slt", answer), 2 * words)


def test_natural_voices_of_a_synthesiser_need_the_material(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        evaluate.main(["--only", "tts", "--tts", "tiny-tts"])
    said = " ".join(capsys.readouterr().err.split())
    assert "tiny-tts has natural voices (vera, will), whose teacher is in the folder of --material" in said
    assert said.endswith("to make it: python -m lab.train.material --out out/material")


@pytest.mark.parametrize("stt", [[], ["--stt", "tiny-stt"]])
def test_natural_voices_are_a_part_of_their_own_with_material(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stt: list[str]
) -> None:
    monkeypatch.setattr(evaluate, "Sets", SimpleNamespace(of=lambda *told: told))
    monkeypatch.setattr(evaluate, "Talker", lambda *told: told)
    monkeypatch.setattr(evaluate, "Recogniser", lambda *told, prefix_frames: (*told, prefix_frames))
    monkeypatch.setattr(evaluate, "ask", lambda talker, sets, ear: {"asked": talker, "sets": len(sets)})
    monkeypatch.setattr(evaluate, "write_down", lambda own, without, sets, ear: {"own": own, "none": without})
    told = [
        "--only",
        "natural",
        "--model",
        "tiny",
        "--backend",
        "onnx",
        *stt,
        "--json",
        str(tmp_path / "out"),
    ]
    assert evaluate.main(told) == 0
    assert json.loads((tmp_path / "out").read_text()) == {"model": "tiny"}
    assert evaluate.main([*told, "--material", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "out").read_text())["natural"]
    assert report["talker"] == {"asked": ["tiny", "onnx"], "sets": 2}
    assert report.get("recogniser") == (
        {"model": "tiny-stt", "own": ["tiny-stt", "onnx", None], "none": ["tiny-stt", "onnx", 1]}
        if stt
        else None
    )
