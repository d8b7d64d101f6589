"""Configurations of Pocket-TTS and its voices, read without the package or a framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from antiphon.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    MissingExtraError,
    UnsupportedError,
)
from antiphon.models import pocket
from antiphon.models.catalog import load_checkpoint
from antiphon.models.pocket_shape import PocketShape
from antiphon.models.spec import PipelineKind

LAYERS, HEADS, HEAD_DIM = 2, 3, 4


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """A folder with two files of weights and a tokenizer, and the configuration that names them."""
    for name in ("full.safetensors", "bare.safetensors"):
        save_file({"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)}, tmp_path / name)
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x00")
    return {
        "weights_path": "full.safetensors",
        "weights_path_without_voice_cloning": "bare.safetensors",
        "default_temperature": 0.4,
        "flow_lm": {
            "transformer": {"num_layers": LAYERS, "num_heads": 6, "d_model": 24, "num_kv_heads": HEADS},
            "lookup_table": {"tokenizer_path": "tokenizer.model"},
        },
        "mimi": {"sample_rate": 24000, "frame_rate": 12.5},
    }


def write(folder: Path, config: object, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_folder_and_its_configuration_are_the_same_model(tmp_path: Path, config: dict[str, Any]) -> None:
    path = write(tmp_path, config)
    for ref, name in ((tmp_path, tmp_path.name), (path, "my")):
        checkpoint = load_checkpoint(str(ref))
        spec = checkpoint.spec
        assert (spec.name, spec.kind, spec.family) == (name, PipelineKind.TTS, "pocket")
        assert (spec.parameters, spec.frame_samples, spec.lm) == (17, 1920, None)
        assert checkpoint.generation["lm_gen_config"] == {"temp": 0.4}
        assert checkpoint.files["lm"] == tmp_path / "full.safetensors"
        assert checkpoint.raw_config["weights_path"] == str(tmp_path / "full.safetensors")
        shape = PocketShape.of(spec)
        assert shape == PocketShape(
            LAYERS, HEADS, HEAD_DIM, 376, clones=True, query_heads=6, capacity=376 + 1 + 272 + 1159
        )


def test_without_the_full_weights_the_others_are_taken_and_no_voice_is_made(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    (tmp_path / "full.safetensors").unlink()
    for changes in ({}, {"weights_path": None}):
        checkpoint = load_checkpoint(str(write(tmp_path, {**config, **changes})))
        assert checkpoint.files["lm"].name == "bare.safetensors"
        shape = PocketShape.of(checkpoint.spec)
        assert shape is not None
        with pytest.raises(UnsupportedError, match="my has no weights for making a voice"):
            shape.recorded(np.zeros(9600, np.float32), checkpoint.spec)


def test_weights_may_be_in_two_parts(tmp_path: Path, config: dict[str, Any]) -> None:
    del config["weights_path"], config["weights_path_without_voice_cloning"]
    config["flow_lm"]["weights_path"] = "full.safetensors"
    config["mimi"]["weights_path"] = "bare.safetensors"
    checkpoint = load_checkpoint(str(write(tmp_path, config)))
    assert checkpoint.spec.parameters == 34
    assert checkpoint.raw_config["mimi"]["weights_path"] == str(tmp_path / "bare.safetensors")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mimi": None}, "lacks mimi: it is no configuration of Pocket-TTS"),
        ({"weights_path": None, "weights_path_without_voice_cloning": None}, "names no weights"),
        ({"weights_path": "https://x/y", "weights_path_without_voice_cloning": None}, "names https://x/y"),
        ({"mimi": {"sample_rate": 0, "frame_rate": 12.5}}, "mimi.sample_rate is 0, expected at least 1"),
        ({"mimi": {"sample_rate": 24000, "frame_rate": 0.0}}, "mimi.frame_rate is 0.0, expected 1 to 24000"),
        (
            {"mimi": {"sample_rate": 24000, "frame_rate": float("nan")}},
            "mimi.frame_rate is nan, a finite number",
        ),
        ({"flow_lm": {"lookup_table": {"tokenizer_path": "my.yaml"}}}, "flow_lm lacks transformer"),
        ({"default_temperature": "hot"}, "default_temperature is 'hot', a number is needed"),
    ],
)
def test_a_configuration_that_cannot_be_is_told_why(
    tmp_path: Path, config: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CheckpointFormatError, match=sentence):
        load_checkpoint(str(write(tmp_path, {**config, **changes})))


def test_what_is_no_configuration_or_too_many(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "x.yaml").write_text("{")
    with pytest.raises(CheckpointFormatError, match="is not YAML"):
        load_checkpoint(str(tmp_path))
    write(tmp_path, [1], "x.yaml")
    with pytest.raises(CheckpointFormatError, match="holds a list, expected a mapping"):
        load_checkpoint(str(tmp_path))
    write(tmp_path, config)
    with pytest.raises(CheckpointFormatError, match=r"2 configurations; name one of them: my.yaml, x.yaml"):
        load_checkpoint(str(tmp_path))


def test_the_packages_own_configurations_go_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    path = pocket.packaged_config("pocket://english")
    assert path.is_file()
    with pytest.raises(CheckpointNotFoundError, match=r"no model 'englih' \(did you mean 'english'\?\)"):
        load_checkpoint("pocket://englih")
    asked: list[str] = []

    def fetch(name: str) -> Path:
        asked.append(name)
        raise CheckpointNotFoundError("gated")

    monkeypatch.setattr(pocket, "get_reference", fetch)
    with pytest.raises(CheckpointNotFoundError, match="gated"):
        load_checkpoint("pocket://english")
    assert asked[0].startswith("hf://kyutai/pocket-tts/languages/english/model.safetensors@")
    assert asked[1].startswith("hf://kyutai/pocket-tts-without-voice-cloning/")
    monkeypatch.setattr(pocket, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[pocket\]'"):
        load_checkpoint("pocket://english")


def voice(frames: int = 3, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    cache = np.arange(2 * 5 * HEADS * HEAD_DIM, dtype=np.float32).reshape(2, 1, 5, HEADS, HEAD_DIM)
    parts: dict[str, Any] = {}
    for layer in range(LAYERS):
        stem = f"transformer.layers.{layer}.self_attn"
        parts |= {f"{stem}/cache": cache + layer, f"{stem}/offset": np.array([frames])}
    return {key: value for key, value in {**parts, **(changes or {})}.items() if value is not None}


@pytest.fixture
def shape() -> PocketShape:
    return PocketShape(LAYERS, HEADS, HEAD_DIM, 376, clones=True, query_heads=6, capacity=1808)


def test_an_exported_voice_is_as_long_as_it_says(tmp_path: Path, shape: PocketShape) -> None:
    save_file(voice(), tmp_path / "a.safetensors")
    kept = shape.read_voice(tmp_path / "a.safetensors").keys_values
    assert kept is not None
    assert kept.shape == (LAYERS, 2, 3, HEADS, HEAD_DIM)
    assert np.array_equal(kept[1, 1], voice()["transformer.layers.1.self_attn/cache"][1, 0, :3])
    older = {key.replace("offset", "current_end"): value for key, value in voice().items()}
    older = {key: np.zeros(3) if "end" in key else value for key, value in older.items()}
    save_file(older, tmp_path / "b.safetensors")
    again = shape.read_voice(tmp_path / "b.safetensors")
    assert again.key == shape.read_voice(tmp_path / "a.safetensors").key


STEM = "transformer.layers.1.self_attn"
WIDER = np.zeros((2, 1, 5, HEADS, HEAD_DIM + 1), np.float32)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (voice(9), "a voice of 9 positions, 5 are in the file and 376 are the most"),
        (voice(0), "a voice of 0 positions"),
        (voice(3, {f"{STEM}/offset": None}), f"lacks {STEM}/cache or offset"),
        (voice(3, {f"{STEM}/offset": np.array([2])}), "a voice of another model: this one has 2 layers"),
        (voice(3, {"transformer.layers.2.self_attn/cache": WIDER}), "a voice of another model"),
        (voice(3, {f"{STEM}/cache": WIDER}), r"keys and values \[2, 1, 5, 3, 5\], this model needs"),
        (voice(3, {f"{STEM}/cache": WIDER[..., 1:] * np.nan}), "numbers that are not finite"),
    ],
)
def test_a_voice_of_another_model_is_refused(
    tmp_path: Path, shape: PocketShape, parts: dict[str, Any], sentence: str
) -> None:
    save_file(parts, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointFormatError, match=sentence):
        shape.read_voice(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointFormatError, match=r"b\.safetensors is no file of a voice"):
        shape.read_voice(tmp_path / "b.safetensors")


def test_of_a_recording_whole_frames_count_and_half_a_minute(
    tmp_path: Path, config: dict[str, Any], shape: PocketShape
) -> None:
    spec = load_checkpoint(str(write(tmp_path, config))).spec
    for samples, frames in ((1920, 1), (5000, 2), (24_000 * 40, 375)):
        voice = shape.recorded(np.ones(samples, np.float32), spec).voice
        assert voice is not None
        assert voice.shape == (frames, 1920)
    with pytest.raises(UnsupportedError, match="a recording of 1919 samples, 1920 are needed"):
        shape.recorded(np.ones(1919, np.float32), spec)
