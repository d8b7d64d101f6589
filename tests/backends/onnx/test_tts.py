"""Text to speech by graphs, in addition to the contract: voices, copies, 8-bit weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.backends.onnx import loading
from antiphon.backends.onnx.executor import OnnxTexts
from antiphon.backends.onnx.loading import make
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.tts import TtsBackend, VoiceCache
from antiphon.errors import StepError, UnsupportedError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.conditioning import SpeakerShape
from antiphon.models.prompt import Prompt
from antiphon_quantize.onnx_weights import quantize_graph
from antiphon_quantize.recipe import load_recipe
from tests.backends.contract import GREEDY, Driver, differ, silent_ticks, voice
from tests.backends.onnx.exports import exported

ROWS = 3
FRAMES = 24


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return exported("tts")


@pytest.fixture
def backend(checkpoint: Checkpoint) -> TtsBackend:
    return backend_of(checkpoint)


def backend_of(checkpoint: Checkpoint, slots: int = ROWS) -> TtsBackend:
    backend = make(checkpoint, slots=slots, threads=1)
    assert isinstance(backend, TtsBackend)
    return backend


def lm_of(backend: TtsBackend) -> Stage:
    assert isinstance(backend.executor, OnnxTexts)
    return backend.executor.stages["lm"]


def shape_of(checkpoint: Checkpoint) -> SpeakerShape:
    shape = SpeakerShape.of(checkpoint.spec)
    assert shape is not None
    return shape


def speaker(checkpoint: Checkpoint, seed: int, count: int = 1) -> Prompt:
    shape = shape_of(checkpoint)
    speakers = np.random.default_rng(seed).normal(0, 1, (count, shape.frames, shape.width))
    return Prompt(np.zeros((0, 0), np.int32), speakers=speakers.astype(np.float32))


def test_a_voice_is_computed_once(backend: TtsBackend, checkpoint: Checkpoint) -> None:
    prompt = speaker(checkpoint, 2)
    assert [backend.prime(row, prompt).is_copied for row in (0, 1, 0)] == [False, True, True]
    assert not backend.prime(1, speaker(checkpoint, 3)).is_copied


def test_the_voice_that_was_longest_unused_goes_first(backend: TtsBackend, checkpoint: Checkpoint) -> None:
    size = sum(array.nbytes for array in backend.executor.compute_voice(None).values())
    voices = VoiceCache(backend.executor, limit_bytes=2 * size)
    first, second = speaker(checkpoint, 1), speaker(checkpoint, 2)
    given = [voices.give(0, prompt) for prompt in (None, first, None, second, None, first)]
    assert given == [False, False, True, False, True, False]


def test_a_row_that_was_restored_is_given_its_voice_again(
    backend: TtsBackend, checkpoint: Checkpoint
) -> None:
    prompt, arrays = speaker(checkpoint, 1), lm_of(backend).state.arrays
    without = backend.snapshot(0)
    backend.prime(0, prompt)
    wanted = arrays["lm.0.cross_k"][0].copy()
    backend.restore(0, without)
    np.testing.assert_array_equal(arrays["lm.0.cross_k"][0], arrays["lm.0.cross_k"][1])
    backend.prime(0, prompt)
    np.testing.assert_array_equal(arrays["lm.0.cross_k"][0], wanted)


def test_a_voice_that_was_written_in_part_is_written_again(
    backend: TtsBackend, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, arrays = speaker(checkpoint, 1), speaker(checkpoint, 2), lm_of(backend).state.arrays
    backend.prime(0, first)
    wanted = {name: array[0].copy() for name, array in arrays.items() if ".cross_" in name}

    def fail(row: int, tensors: Mapping[str, Any]) -> None:
        name = next(iter(tensors))
        arrays[name][row] = tensors[name]
        raise RuntimeError(f"only {name} was written")

    with monkeypatch.context() as patch:
        patch.setattr(backend.executor, "write_voice", fail)
        with pytest.raises(StepError, match=r"rows \[0\] failed: RuntimeError: only lm\.0\.cross_k"):
            backend.prime(0, second)
    backend.prime(0, first)
    for name, array in wanted.items():
        np.testing.assert_array_equal(arrays[name][0], array, err_msg=name)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("host.frames", None, r"the snapshot has no host\.frames"),
        ("host.script", None, r"the snapshot has no host\.script"),
        ("host.script", np.zeros(3, np.uint8), "3 bytes are no script"),
    ],
)
def test_a_snapshot_without_the_hosts_part_is_refused_and_the_row_stays(
    backend: TtsBackend, name: str, array: NDArray[Any] | None, words: str
) -> None:
    driver = Driver(backend)
    driver.run(1, voice(1, 6, backend.info))
    kept = backend.snapshot(1)
    others = {other: tensor for other, tensor in kept.tensors.items() if other != name}
    damaged = replace(kept, tensors=others if array is None else {**others, name: array})
    with pytest.raises(UnsupportedError, match=words):
        backend.restore(1, damaged)
    for other, tensor in backend.snapshot(1).tensors.items():
        np.testing.assert_array_equal(tensor, kept.tensors[other], err_msg=other)


def test_a_row_that_cannot_be_restored_fails_alone(
    backend: TtsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(row: int, tensors: Mapping[str, Any]) -> None:
        raise MemoryError(f"row {row} has no room for {len(tensors)} tensors")

    monkeypatch.setattr(backend.executor, "restore", fail)
    with pytest.raises(StepError, match=r"rows \[2\] failed: MemoryError: row 2 has no room") as caught:
        backend.restore(2, backend.snapshot(0))
    assert caught.value.rows == (2,)


def test_a_voice_is_no_part_of_what_a_step_writes(backend: TtsBackend, checkpoint: Checkpoint) -> None:
    arrays, graph = lm_of(backend).state.arrays, lm_of(backend).graph
    voices = {name for name in arrays if ".cross_" in name}
    assert len(voices) == 2 * 2
    backend.prime(1, speaker(checkpoint, 1, count=5))
    before = {name: arrays[name].copy() for name in voices}
    driver = Driver(backend)
    driver.run(1, voice(1, 6, backend.info))
    for name in voices:
        formats = [entry for entry in checkpoint.graphs["lm"].state if entry.name == name]
        assert [entry.output for entry in formats] == [None]
        np.testing.assert_array_equal(arrays[name][0], before[name][0])
        np.testing.assert_array_equal(arrays[name][1], before[name][0], "no speaker, by the reset")
        assert not np.array_equal(before[name][0], before[name][1])
    form = checkpoint.graphs["lm"]
    written = [entry.name for entry in form.state if entry.output is not None and not entry.aliased]
    assert graph.bytes == graph.state.bytes + sum(arrays[name].nbytes for name in written)


def test_more_rows_are_as_fresh_as_the_first(checkpoint: Checkpoint) -> None:
    resized, made = backend_of(checkpoint, 1), backend_of(checkpoint, 4)
    resized.resize(4)
    assert replace(resized.info, row_ms=made.info.row_ms) == made.info
    for name, tensor in made.snapshot(3).tensors.items():
        np.testing.assert_array_equal(resized.snapshot(3).tensors[name], tensor)


def test_what_is_no_voice_is_refused(backend: TtsBackend) -> None:
    nothing = np.zeros((0, 0), np.int32)
    with pytest.raises(
        UnsupportedError, match=r"voices \[6, 6, 16\], but this model needs float32 \[1 to 5, 6, 16\]"
    ):
        backend.prime(0, Prompt(nothing, speakers=np.zeros((6, 6, 16), np.float32)))
    with pytest.raises(UnsupportedError, match=r"a tts model takes voices, .* and no other prompt"):
        backend.prime(0, Prompt(np.zeros((3, 9), np.int32)))


def test_a_model_of_one_voice_takes_no_other(checkpoint: Checkpoint) -> None:
    assert checkpoint.spec.lm is not None
    lm = replace(checkpoint.spec.lm, config={**checkpoint.spec.lm.config, "conditioners": {}})
    executor = backend_of(checkpoint).executor
    alone = TtsBackend(replace(checkpoint.spec, lm=lm), executor, slots=ROWS)
    assert not alone.info.can_prime
    with pytest.raises(UnsupportedError, match="has one built-in voice and accepts no other"):
        alone.prime(0, speaker(checkpoint, 1))


def test_weights_in_8_bits_say_nearly_the_same(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The voice's graph and what looks at it are rounded too; neither loudness nor pace changes much."""
    folder, recipe = tmp_path / "int8", load_recipe("onnx", "int8")
    shutil.copytree(checkpoint.root, folder)
    rounded = {}
    for graph in checkpoint.graphs.values():
        name = checkpoint.file(graph.file).name
        rounded[name] = quantize_graph(checkpoint.root / name, folder / name, recipe).errors
    assert {"voices.0.weight", "voices.1.weight"} == rounded["voice.onnx"].keys()
    looking = {name for name in rounded["lm.onnx"] if "cross_attention" in name}
    assert len(looking) == 2 * 2
    assert all(0 < error < 0.02 for errors in rounded.values() for error in errors.values())
    files = {role: folder / path.name for role, path in checkpoint.files.items()}
    loudness = []
    for made in (checkpoint, replace(checkpoint, files=files)):
        backend = backend_of(made)
        backend.set_parameters(0, GREEDY)
        backend.prime(0, speaker(checkpoint, 1))
        driver = Driver(backend)
        said = [driver.tick({0: frame})[0] for frame in voice(1, FRAMES, backend.info)]
        frames = [reply.pcm for reply in said if reply.pcm is not None]
        assert len(frames) == FRAMES - silent_ticks(backend.info)
        loudness.append(float(np.sqrt(np.mean(np.square(frames)))))
    assert loudness[1] == pytest.approx(loudness[0], rel=0.5)


def test_a_row_with_another_voice_says_something_else(backend: TtsBackend, checkpoint: Checkpoint) -> None:
    driver = Driver(backend)
    said = []
    for count in (1, 2):
        backend.prime(0, speaker(checkpoint, 1, count))
        said.append([driver.tick({0: frame})[0] for frame in voice(2, FRAMES, backend.info)])
    assert differ(*said)


def test_the_graph_of_voices_is_in_memory_once(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Checkpoint
) -> None:
    monkeypatch.setattr(loading, "SHORT_BYTES", 0)
    weights = [make(checkpoint, slots=1, threads=n).info.memory["weights"] for n in (1, 2)]
    voice = checkpoint.graphs["voice"].file
    once = sum(path.stat().st_size for role, path in checkpoint.files.items() if role.startswith(voice))
    assert weights[1] == 2 * weights[0] - once
