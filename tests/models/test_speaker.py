"""Voices as files of embeddings: valid and invalid ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from antiphon.errors import CheckpointFormatError, UnsupportedError
from antiphon.models import conditioning
from antiphon.models.conditioning import SpeakerShape, read_speaker
from tests.models.test_script import spec_with

SPEC = spec_with(speaker_frames=3)
assert SPEC.lm is not None
CONDITIONERS = {"speaker_wavs": {"type": "tensor", "tensor": {"dim": 2}}}
VOICED = replace(SPEC, lm=replace(SPEC.lm, config={"conditioners": CONDITIONERS}))


def test_the_shape_is_the_models() -> None:
    assert SpeakerShape.of(SPEC) is None
    assert SpeakerShape.of(VOICED) == SpeakerShape(frames=3, width=2)
    assert SpeakerShape.of(replace(VOICED, generation={})) == SpeakerShape(frames=125, width=2)
    assert SpeakerShape(125, 512).positions == 625
    with pytest.raises(CheckpointFormatError, match="speaker_frames is 0, it must be at least 1"):
        SpeakerShape.of(replace(VOICED, generation={"tts_config": {"speaker_frames": 0}}))


def test_a_voice_is_transposed_and_named_by_its_numbers(tmp_path: Path) -> None:
    shape = SpeakerShape(frames=3, width=2)
    path = tmp_path / "v.safetensors"
    save_file({"speaker_wavs": np.arange(6, dtype=np.float16).reshape(1, 2, 3)}, path)
    prompt = shape.prompt(read_speaker(path))
    assert prompt.speakers is not None
    assert prompt.speakers.tolist() == [[[0, 3], [1, 4], [2, 5]]]
    assert prompt.key == shape.prompt(np.arange(6, dtype=np.float32).reshape(2, 3)).key
    assert prompt.key != shape.prompt(np.zeros((2, 3), np.float32)).key


def test_what_is_no_voice_of_this_model_is_refused(tmp_path: Path) -> None:
    shape = SpeakerShape(frames=3, width=2)
    for wrong in ((1, 3, 2), (2, 2, 3), (6,), (1, 1, 2, 3)):
        with pytest.raises(UnsupportedError, match=r"this model needs \[1, 2, 3\]"):
            shape.prompt(np.zeros(wrong, np.float32))
    with pytest.raises(UnsupportedError, match="not finite"):
        shape.prompt(np.full((2, 3), np.nan, np.float32))
    path = tmp_path / "v.safetensors"
    save_file({"other": np.zeros(1, np.float32)}, path)
    with pytest.raises(
        CheckpointFormatError, match=r"v\.safetensors has \['other'\], a voice has speaker_wavs"
    ):
        read_speaker(path)
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointFormatError, match=r"v\.safetensors is no file of a voice"):
        read_speaker(path)


def test_what_a_file_becomes_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditioning, "MAX_BYTES", 2000)
    path = tmp_path / "bytes.safetensors"
    save_file({"speaker_wavs": np.zeros(1000, np.int8)}, path)
    assert path.stat().st_size < 2000
    with pytest.raises(CheckpointFormatError, match="take 8000 bytes, a voice's at most 2000"):
        read_speaker(path)
