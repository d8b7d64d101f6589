"""Concurrent rows that start, end and fail, and the properties reported by the backend."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from antiphon.backends import registry
from antiphon.backends.base import Backend, BackendInfo, StepInputs, TextEntry
from antiphon.backends.host import RowHost
from antiphon.backends.pocket.backend import PocketBackend
from antiphon.backends.pocket.row import Frame, PocketRow
from antiphon.backends.registry import make_backend, resolve_auto
from antiphon.backends.speaker import normal
from antiphon.engine.config import EngineConfig
from antiphon.engine.sizing import make_sized
from antiphon.errors import (
    CheckpointFormatError,
    ConfigError,
    MissingExtraError,
    StepError,
    UnsupportedError,
)
from antiphon.install import install_command
from antiphon.models.catalog import load_checkpoint
from antiphon.models.pocket_shape import PocketShape
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from tests.backends.pocket.small import LONG, SAMPLED, Talk, entries_of, small_backend, speak, tick

SHORT = "One two. Three four five?"
NO_FRAMES = np.zeros((0, 0), np.int32)


def test_a_seed_says_the_same_again_on_any_row_and_however_the_text_comes(
    backend: Backend, pocket_folder: Path
) -> None:
    entries = entries_of(pocket_folder, LONG)
    once = speak(backend, entries)
    np.testing.assert_array_equal(speak(backend, entries, row=2, at_once=1).audio, once.audio)
    other = speak(backend, entries, parameters=replace(SAMPLED, audio_seed=8))
    assert not np.array_equal(other.audio[:1920], once.audio[:1920])
    cooler = speak(backend, entries, parameters=replace(SAMPLED, audio_temperature=0.2))
    assert not np.array_equal(cooler.audio[:1920], once.audio[:1920])


def test_neighbours_change_nothing_and_who_leaves_midway_frees_the_row(
    backend: Backend, pocket_folder: Path
) -> None:
    """Row 0 speaks all the while; on row 1 somebody begins, is cut, and is followed by another."""
    texts = [entries_of(pocket_folder, text) for text in (LONG, LONG[::-1].replace(" ", ". "), SHORT)]
    alone = [speak(backend, entries).audio for entries in texts]
    first, cut, after = (Talk(list(entries)) for entries in texts)
    for _ in range(5):
        tick(backend, {0: first, 1: cut})
    assert cut.pcm
    assert not cut.is_done
    assert backend.state_bytes() > 0
    for _ in range(60):
        tick(backend, {0: first, 1: after})
    np.testing.assert_array_equal(first.audio, alone[0])
    np.testing.assert_array_equal(after.audio, alone[2])
    assert backend.state_bytes() == 0


def test_words_wait_for_the_end_of_what_they_belong_to(backend: Backend, pocket_folder: Path) -> None:
    *words, end = entries_of(pocket_folder, SHORT)
    talk = Talk(words)
    for _ in range(10):
        tick(backend, {0: talk})
    assert not talk.entries
    assert not talk.pcm
    talk.entries = [end]
    tick(backend, {0: talk})
    assert talk.told == [(0, len(words) - 1)]


def test_a_pause_ends_what_came_before_it(backend: Backend, pocket_folder: Path) -> None:
    talk = speak(backend, entries_of(pocket_folder, 'One two <break time="0.4s"/> three'))
    alone = [speak(backend, entries_of(pocket_folder, text)).audio for text in ("One two", "three")]
    first, (pause_at, pause), _ = talk.told
    assert (first, pause) == ((0, 1), 2)
    assert len(talk.pcm) > pause_at + 5
    np.testing.assert_array_equal(np.concatenate(talk.pcm[:pause_at]), alone[0])
    assert not np.concatenate(talk.pcm[pause_at : pause_at + 5]).any()
    assert talk.pcm[pause_at + 5].any()


def test_nothing_to_say_is_said_at_once(backend: Backend) -> None:
    for entries in ([TextEntry((), is_last=True)], [TextEntry((5,), "\u2013"), TextEntry((), is_last=True)]):
        talk = Talk(entries)
        tick(backend, {0: talk})
        assert talk.is_done or len(talk.entries) == 0
    talk = Talk([TextEntry((5,), " "), TextEntry((), is_last=True)])
    tick(backend, {0: talk})
    assert (talk.is_done, talk.pcm) == (True, [])


@pytest.mark.parametrize(("ticks", "text"), [(7, LONG), (20, LONG), (4, 'One two <break time="4s"/> three')])
def test_a_row_goes_on_from_its_snapshot_in_another_process_too(
    backend: Backend, pocket_folder: Path, ticks: int, text: str
) -> None:
    """Amid a sentence, between two, in a pause; what is kept are arrays, and no object of the model."""
    entries = entries_of(pocket_folder, text)
    whole = speak(backend, entries).audio
    talk = Talk(list(entries), at_once=3)
    backend.prime(0, read_voice(pocket_folder))
    talk.is_fresh = False
    backend.set_parameters(0, SAMPLED)
    for _ in range(ticks):
        tick(backend, {0: talk})
    kept = backend.snapshot(0)
    assert 0 < kept.bytes <= sum(array.nbytes for array in kept.tensors.values())
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **backend.to_host(kept))
    file.seek(0)
    arrays = dict(np.load(file, allow_pickle=False))
    another = small_backend(pocket_folder, slots=1)
    twins = [replace(talk, entries=[*talk.entries], pcm=[*talk.pcm], told=[]) for _ in range(2)]
    for where, row in ((backend, 2), (another, 0)):
        where.restore(row, where.from_host(arrays))
        where.set_parameters(row, SAMPLED)
    for _ in range(100):
        tick(backend, {0: talk, 2: twins[0]})
        tick(another, {0: twins[1]})
    another.close()
    assert talk.is_done
    assert not np.array_equal(talk.audio[: len(whole)], whole[: len(talk.audio)])  # the voice's own
    for twin in twins:
        np.testing.assert_array_equal(twin.audio, talk.audio)


def test_a_snapshot_of_another_model_is_refused(backend: Backend) -> None:
    kept = backend.snapshot(0)
    fewer = {name: array for name, array in kept.tensors.items() if "layers.1" not in name}
    with pytest.raises(UnsupportedError, match=r"of another model cannot .*: voice/.* is nothing, not"):
        backend.restore(0, replace(kept, tensors=fewer))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"text": np.frombuffer(b"{nothing", np.uint8)}, r"damaged: JSONDecodeError"),
        ({"text": np.frombuffer(b"{}", np.uint8)}, r"damaged: KeyError: 'chunker'"),
        ({"latent": np.zeros((1, 2, 4), np.float32)}, r"latent is float32 \[1, 2, 4\] in it"),
        ({"state/transformer.layers.1.self_attn/cache": np.zeros((2, 1, 9, 3, 16), np.float32)}, r"3, 16\]"),
        (
            {"state/transformer.layers.1.self_attn/offset": np.zeros(1, np.int32)},
            r"is int32 \[1\], not",
        ),
        ({"codec/one/too/many": np.zeros(1)}, r"codec/one/too/many"),
    ],
)
def test_a_damaged_snapshot_is_refused_and_the_row_goes_on(
    backend: Backend, pocket_folder: Path, damage: dict[str, Any], sentence: str
) -> None:
    entries = entries_of(pocket_folder, LONG)
    whole = speak(backend, entries).audio
    talk = Talk(list(entries))
    for _ in range(5):
        tick(backend, {0: talk})
    kept = backend.snapshot(0)
    assert "latent" in kept.tensors
    with pytest.raises(UnsupportedError, match=sentence):
        backend.restore(0, replace(kept, tensors={**kept.tensors, **damage}))
    for _ in range(60):
        tick(backend, {0: talk})
    np.testing.assert_array_equal(talk.audio, whole)


def test_a_row_that_fails_does_so_alone(
    backend: Backend, pocket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told of before anybody is advanced, so nobody else misses a frame."""
    entries = entries_of(pocket_folder, LONG)
    whole = speak(backend, entries).audio
    good, bad = Talk(list(entries)), Talk(list(entries))
    tick(backend, {0: good, 1: bad})
    assert isinstance(backend, PocketBackend)
    speaker, speak_on = backend.executor.rows[1], PocketRow.speak

    def fail_there(self: PocketRow, parameters: SamplingParameters) -> Frame | None:
        if self is speaker:
            raise ValueError("no such sound")
        return speak_on(self, parameters)

    monkeypatch.setattr(PocketRow, "speak", fail_there)
    tick(backend, {0: good, 1: bad})
    said = len(good.pcm)
    with pytest.raises(StepError, match=r"rows \[1\] failed: ValueError: no such sound") as caught:
        tick(backend, {0: good, 1: bad})
    assert caught.value.rows == (1,)
    assert len(good.pcm) == said
    monkeypatch.undo()
    again = Talk(list(entries))
    for _ in range(60):
        tick(backend, {0: good, 1: again})
    assert np.array_equal(good.audio, whole)
    assert np.array_equal(again.audio, whole)


def read_voice(folder: Path) -> Prompt:
    shape = PocketShape.of(load_checkpoint(str(folder)).spec)
    assert shape is not None
    return shape.read_voice(folder / "voices" / "calm.safetensors")


def test_memory_is_bounded_by_what_is_said_of_it(backend: Backend) -> None:
    """The longest word there may be, with no end in sight, is the most that a row ever holds."""
    word = TextEntry(tuple([5] * 256), "seven" * 40)
    talk = Talk([word] * 40, at_once=1)
    most = 0
    for _ in range(60):
        tick(backend, {0: talk})
        most = max(most, backend.state_bytes())
    assert talk.pcm
    assert len(talk.entries) > 30  # it takes no more than it can hold
    assert 0 < most <= backend.info.memory["state_per_row"]


def test_slots_are_what_a_rows_time_allows(pocket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig()

    info: Callable[[PocketBackend], BackendInfo] = vars(RowHost)["info"].fget
    for row_ms, slots in ((20.0, 3), (200.0, 1), (1e-3, config.max_slots)):

        def timed(backend: PocketBackend, row_ms: float = row_ms) -> BackendInfo:
            return replace(info(backend), row_ms=row_ms)

        monkeypatch.setattr(PocketBackend, "info", property(timed))
        sized = make_sized(
            lambda slots: small_backend(pocket_folder, slots=slots), config, lambda: 0.0
        ).backend
        assert sized.info.slots == slots
        sized.close()


def test_prompts_that_are_no_voice_of_this_model(backend: Backend, pocket_folder: Path) -> None:
    cache = load_file(pocket_folder / "voices" / "calm.safetensors")["transformer.layers.0.self_attn/cache"]
    assert cache.shape[1:2] + cache.shape[3:] == (1, 2, 16)
    for prompt, sentence in (
        (
            Prompt(NO_FRAMES, keys_values=np.zeros((2, 2, 5, 2, 9), np.float32)),
            r"needs \[2, 2, 1 to 376, 2, 16\]",
        ),
        (Prompt(NO_FRAMES), "takes a voice, exported or recorded"),
        (Prompt(NO_FRAMES, voice=np.zeros((376, 1920), np.float32)), r"needs \[1 to 375, 1920\]"),
    ):
        with pytest.raises(UnsupportedError, match=sentence):
            backend.prime(0, prompt)
    with pytest.raises(UnsupportedError, match="row 3 does not exist"):
        backend.prime(3, Prompt(NO_FRAMES))


def test_steps_are_checked(backend: Backend) -> None:
    with pytest.raises(UnsupportedError, match="backend pocket has rows 0 to 2"):
        backend.step(StepInputs(np.array([1, 3], np.int32), np.zeros(2, np.bool_), None, ((), ())))
    assert backend.plan(np.array([2, 0], np.int32)) == 2


def test_weights_in_int8_speak_too(pocket_folder: Path) -> None:
    backend = small_backend(
        pocket_folder, slots=1, weights="int8", threads=2, chunk_tokens=6, sampler_steps=2
    )
    assert (backend.info.quantization, backend.info.cpu_threads) == ("int8", 2)
    talk = speak(backend, entries_of(pocket_folder, SHORT))
    assert np.isfinite(talk.audio).all()
    assert len(talk.told) == 2
    backend.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"weights": "int4"}, "weights is 'int4'; it can be float32, int8"),
        ({"chunk_tokens": 0}, "chunk_tokens is 0; it can be 1 to 200"),
        ({"sampler_steps": 65}, "sampler_steps is 65; it can be 1 to 64"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_options_out_of_range_are_named(pocket_folder: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        small_backend(pocket_folder, **options)


def test_what_cannot_be_loaded_is_said(pocket_folder: Path) -> None:
    checkpoint = load_checkpoint(str(pocket_folder))
    with pytest.raises(ConfigError, match="device is 'cuda:0'; the pocket backend runs on the cpu"):
        make_backend("pocket", checkpoint, slots=1, device="cuda")
    broken = replace(checkpoint, raw_config={**checkpoint.raw_config, "surprise": 1})
    with pytest.raises(CheckpointFormatError, match=r"pocket-tts cannot load .*surprise"):
        make_backend("pocket", broken, slots=1)
    with pytest.raises(UnsupportedError) as caught:
        make_backend("torch", checkpoint, slots=1)
    assert str(caught.value).endswith(
        "small is tts of the family pocket; the backend for it is onnx or pocket"
    )


def test_the_package_is_named_where_it_is_missing(
    pocket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = load_checkpoint(str(pocket_folder))
    assert resolve_auto(checkpoint) == "pocket"
    with pytest.raises(UnsupportedError, match=r"lacks the Python module 'pocket_tts'\. To make the"):
        resolve_auto(checkpoint, find=lambda module: None)
    missing = "the Python module 'pocket_tts', which is not installed; install it with: "
    monkeypatch.setattr(registry, "find_spec", lambda module: None)
    with pytest.raises(MissingExtraError, match=re.escape(missing + install_command("pocket"))) as caught:
        make_backend("pocket", checkpoint, slots=1)
    assert caught.value.extra == "pocket"


def test_loading_leaves_the_process_as_it_was(pocket_folder: Path) -> None:
    """The package sets torch to one thread when it is imported."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        small_backend(pocket_folder, slots=1, threads=2).close()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_noise_is_normal_and_of_its_seed_and_step_alone() -> None:
    draws = np.concatenate([normal(3, step, 33) for step in range(400)])
    assert abs(float(draws.mean())) < 4 / math.sqrt(draws.size)
    assert abs(float(draws.std()) - 1) < 0.03
    assert abs(float((draws**4).mean()) - 3) < 0.4
    assert np.array_equal(normal(3, 5, 8), normal(3, 5, 8))
    assert not np.array_equal(normal(3, 5, 8), normal(4, 5, 8))
    assert np.array_equal(normal(2**63, 5, 7), normal(2**63, 5, 8)[:7])
    assert SamplingParameters.from_generation({"lm_gen_config": {"temp": 0.3}}).audio_temperature == 0.3
