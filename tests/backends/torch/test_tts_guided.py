"""Guided text to speech compared with upstream's TTSModel with ``cfg_coef``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.backends.base import FloatArray
from antiphon.backends.registry import make_backend
from antiphon.backends.torch.executor import TorchRows
from antiphon.backends.torch.loading import make
from antiphon.backends.tts import TtsBackend
from antiphon.errors import CheckpointFormatError, ConfigError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.conditioning import guidance_of
from tests.backends.torch.test_tts import (
    GREEDY,
    TEXTS,
    Driver,
    OutputFrame,
    assert_said,
    backend_of,
    entries_of,
    make_speaker,
    said_by_upstream,
    upstream,
    voice,
)
from tests.support.make_checkpoint import make_checkpoint

GUIDANCE = 1.75
TABLE = {"n_bins": 2, "dim": 8, "tokenizer": "noop", "possible_values": ["ok", "bad"]}
SPEAKERS = {"type": "tensor", "tensor": {"dim": 16}}
Wanted = list[tuple[FloatArray, list[int]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is told whose voice and "control", and not how closely to follow."""
    return make_speaker(
        tmp_path_factory.mktemp("guided") / "tts",
        conditioners={"control": {"type": "lut", "lut": TABLE}, "speaker_wavs": SPEAKERS},
        fuser={
            "cross_attention_pos_emb": True,
            "cross_attention_pos_emb_scale": 1,
            "sum": ["control"],
            "prepend": [],
            "cross": ["speaker_wavs"],
        },
        tts_config={
            "audio_delay": 0.64, "second_stream_ahead": 2, "speaker_frames": 6, "cfg_coef": GUIDANCE,
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(str(folder))


@pytest.fixture(scope="module")
def wanted(folder: Path) -> Wanted:
    return said_by_upstream(upstream(folder, GUIDANCE), folder, told=None)


@pytest.fixture(scope="module")
def backend(checkpoint: Checkpoint) -> TtsBackend:
    return backend_of(checkpoint, 5)


def begin(driver: Driver, row: int, which: int, checkpoint: Checkpoint, folder: Path) -> OutputFrame:
    return driver.begin(row, entries_of(checkpoint, TEXTS[which]), voice(checkpoint, folder, which))


def test_everybody_says_what_upstream_says_guided(
    backend: TtsBackend, checkpoint: Checkpoint, folder: Path, wanted: Wanted
) -> None:
    """Rows that join, pause, move and follow one another: a row's pair stays together."""
    driver = Driver(backend)
    begin(driver, 1, 0, checkpoint, folder)
    for _ in range(7):
        driver.tick([1])
    begin(driver, 0, 1, checkpoint, folder)
    begin(driver, 3, 2, checkpoint, folder)
    for _ in range(5):
        driver.tick([0, 3])
    driver.move(1, 4)
    kept = backend.snapshot(3)
    driver.run([0, 4])
    begin(driver, 0, 0, checkpoint, folder)
    driver.tick([0, 3])
    backend.restore(3, kept)
    del driver.said[3].pcm[-1:]
    driver.said[3].words = [word for word in driver.said[3].words if word[0] < len(driver.said[3].pcm)]
    driver.run([0, 3])
    for row, which in ((0, 0), (3, 2), (4, 0)):
        assert_said(driver.said[row], wanted[which])


def test_it_is_heard(checkpoint: Checkpoint, folder: Path, wanted: Wanted) -> None:
    """What is not guided, or by another coefficient, says the same words otherwise."""
    for guidance in (1.0, 3.0):
        backend = make_backend(
            "torch", checkpoint, slots=1, device="cpu", options={"threads": 1, "guidance": guidance}
        )
        assert isinstance(backend, TtsBackend)
        backend.set_parameters(0, GREEDY)
        driver = Driver(backend)
        said = begin(driver, 0, 1, checkpoint, folder)
        driver.run([0])
        pcm = wanted[1][0]
        assert np.abs(said.audio[: len(pcm)] - pcm[: len(said.audio)]).max() > 1e-2


def test_a_row_has_twice_the_state(checkpoint: Checkpoint, backend: TtsBackend) -> None:
    plain = make(checkpoint, slots=1, device="cpu", threads=1, guidance=1.0)
    assert isinstance(plain.executor, TorchRows)
    assert isinstance(backend.executor, TorchRows)
    specs = {name: spec for name, spec in plain.executor.pipeline.state.specs.items() if "lm." in name}
    for name, spec in specs.items():
        shape = backend.executor.pipeline.state.specs[name].shape
        assert shape == (spec.shape if name in ("lm.tokens", "lm.recent") else (2, *spec.shape))
    assert backend.info.slots == 5


def with_config(checkpoint: Checkpoint, **tts_config: Any) -> Checkpoint:
    spec = checkpoint.spec
    merged = {**spec.generation["tts_config"], **tts_config}
    return replace(checkpoint, spec=replace(spec, generation={**spec.generation, "tts_config": merged}))


def test_the_coefficient_is_asked_for_or_published_or_one(checkpoint: Checkpoint) -> None:
    assert guidance_of(checkpoint.spec) == GUIDANCE
    assert guidance_of(checkpoint.spec, 3) == 3.0
    assert guidance_of(with_config(checkpoint, cfg_coef=2).spec) == 2.0
    assert guidance_of(replace(checkpoint.spec, generation={"tts_config": {"audio_delay": 0.64}})) == 1.0


def test_a_coefficient_that_cannot_be(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(CheckpointFormatError, match=r"tts_config\.cfg_coef is 0\.5, it must be 1 to 10"):
        guidance_of(with_config(checkpoint, cfg_coef=0.5).spec)
    with pytest.raises(CheckpointFormatError, match=r"tts_config\.cfg_coef is 'much', a number is needed"):
        guidance_of(with_config(checkpoint, cfg_coef="much").spec)
    with pytest.raises(UnsupportedError, match="guidance is 11, it can be 1 to 10"):
        guidance_of(checkpoint.spec, 11.0)
    with pytest.raises(UnsupportedError, match="guidance is nan, it can be 1 to 10"):
        guidance_of(checkpoint.spec, float("nan"))
    told = load_checkpoint(str(make_checkpoint(tmp_path / "told", kind="tts")))
    with pytest.raises(UnsupportedError, match="has its guidance as a trained input; guidance of 2"):
        make(told, slots=1, device="cpu", threads=1, guidance=2.0)
    heard = load_checkpoint(str(make_checkpoint(tmp_path / "heard", kind="moshi")))
    with pytest.raises(ConfigError, match="guidance is 2, but a duplex model is not guided"):
        make(heard, slots=1, device="cpu", threads=1, guidance=2.0)


def test_a_model_without_a_voice_or_tables_is_guided_by_its_text(tmp_path: Path) -> None:
    folder = make_checkpoint(
        tmp_path / "tts", kind="tts", dtype="float32", conditioners={}, fuser={}, cross_attention=False
    )
    config = json.loads((folder / "config.json").read_text())
    said = {}
    for guidance in (1.0, 2.0):
        config["tts_config"]["cfg_coef"] = guidance
        (folder / "config.json").write_text(json.dumps(config))
        checkpoint = load_checkpoint(str(folder))
        driver = Driver(backend_of(checkpoint, 1))
        said[guidance] = driver.begin(0, entries_of(checkpoint, TEXTS[2]), None)
        driver.run([0])
    frames = min(len(heard.pcm) for heard in said.values())
    assert frames > 12
    assert not np.allclose(said[1.0].audio[: frames * 1920], said[2.0].audio[: frames * 1920], atol=1e-2)
