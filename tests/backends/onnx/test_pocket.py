"""Pocket-TTS as graphs: what rows say is what the package says, and its rules are the package's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.base import FloatArray
from antiphon.backends.onnx.pocket import TICK_READS, OnnxUtterances, UtteranceBackend
from antiphon.backends.onnx.pocket_voices import end_on_pause
from antiphon.backends.onnx.sessions import onnxruntime
from antiphon.backends.registry import make_backend
from antiphon.errors import ConfigError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.pocket_shape import PocketText, longest_frames
from antiphon_quantize.onnx_weights import quantize_graph
from antiphon_quantize.pocket_lm import FlowNet
from antiphon_quantize.recipe import load_recipe
from tests.backends.onnx.exports import exported_pocket, pocket_source
from tests.backends.pocket.small import LONG, SAMPLED, Talk, entries_of, speak, tick
from tests.backends.pocket.upstream import says, upstream, voice_of

SHORT = "seven\u2013 eight"


@pytest.fixture(scope="module")
def backend() -> Iterator[UtteranceBackend]:
    made = make_backend("onnx", exported_pocket(), slots=3, options={"threads": 1})
    assert isinstance(made, UtteranceBackend)
    yield made
    made.close()


@pytest.mark.parametrize(("voice", "text"), [("calm.safetensors", LONG), ("ring.wav", SHORT)])
def test_a_row_says_what_the_package_says(
    backend: UtteranceBackend, monkeypatch: pytest.MonkeyPatch, voice: str, text: str
) -> None:
    """Sample for sample within rounding, several chunks, with a voice that is exported or recorded."""
    folder = pocket_source()
    path, prompt = folder / "voices" / voice, voice_of(folder, voice)
    heard = says(monkeypatch)(upstream(folder), text, path if voice.endswith("wav") else str(path), SAMPLED)
    progress = [backend.prime(1, prompt)]
    while not progress[-1].is_done:
        progress.append(backend.prime(1, prompt))
    assert [step.done for step in progress] == [*range(1, len(progress)), progress[-1].total]
    said = speak(backend, entries_of(folder, text), row=1, is_primed=True)
    np.testing.assert_allclose(said.audio, heard, rtol=0, atol=1e-5)
    assert backend.prime(0, prompt).is_done  # a recording is heard once
    again = speak(backend, entries_of(folder, text), is_primed=True)
    np.testing.assert_allclose(again.audio, said.audio, rtol=0, atol=1e-5)


def test_rows_side_by_side_say_what_each_says_alone(backend: UtteranceBackend) -> None:
    """Each begins some ticks after the one before; pauses and ends come at other ticks for each."""
    texts = (LONG, 'One two <break time="0.4s"/> three', SHORT)
    entries = [entries_of(pocket_source(), text) for text in texts]
    alone = [speak(backend, words).audio for words in entries]
    talks = {row: Talk(list(words), at_once=2) for row, words in enumerate(entries)}
    for turn in range(200):
        tick(backend, {row: talk for row, talk in talks.items() if turn >= 3 * row})
    for talk, wanted in zip(talks.values(), alone, strict=True):
        assert talk.is_done
        np.testing.assert_allclose(talk.audio, wanted, rtol=0, atol=1e-5)


def test_texts_that_begin_at_once_are_read_over_several_ticks(
    backend: UtteranceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = backend.executor.lm.read

    def counted(row: int, tokens: Sequence[int]) -> None:
        reads.append(row)
        read(row, tokens)

    monkeypatch.setattr(backend.executor.lm, "read", counted)
    words = entries_of(pocket_source(), LONG)
    wanted = speak(backend, words).audio
    chunks = len(reads)
    talks, most = {row: Talk(list(words)) for row in range(3)}, 0
    while not all(talk.is_done for talk in talks.values()):
        before = len(reads)
        tick(backend, talks)
        most = max(most, len(reads) - before)
        if before == chunks:
            kept = backend.snapshot(2)  # its chunk is not read yet
            backend.restore(2, kept)
    assert (most, len(reads)) == (TICK_READS, 4 * chunks)
    for talk in talks.values():
        np.testing.assert_allclose(talk.audio, wanted, rtol=0, atol=1e-5)


def test_a_recording_that_another_row_has_encoded_meanwhile_is_not_kept_in_parts(
    backend: UtteranceBackend,
) -> None:
    executor, spec = backend.executor, backend.info.spec
    recording = np.sin(np.arange(3 * spec.frame_samples, dtype=np.float32))
    prompt = executor.shape.recorded(recording, spec)
    assert not backend.prime(0, prompt).is_done
    while not backend.prime(1, prompt).is_done:
        pass
    assert backend.prime(0, prompt).is_done
    assert not executor.voices.is_encoding(0, prompt)


def test_a_reset_erases_what_is_hidden_too(backend: UtteranceBackend) -> None:
    executor = backend.executor
    assert isinstance(executor, OnnxUtterances)
    backend.prime(0, voice_of(pocket_source(), "calm.safetensors"))
    talks = {row: Talk(entries_of(pocket_source(), LONG), is_fresh=row > 0) for row in range(2)}
    for _ in range(30):
        tick(backend, talks)
    rings = {name: array for name, array in executor.stages["lm"].state.arrays.items() if array.ndim > 1}
    assert all(array[0].any() for array in rings.values())
    executor.reset([0, 1, 2])
    assert not any(array.any() for array in rings.values())


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"text": np.frombuffer(b"{}", np.uint8)}, "damaged: KeyError: 'chunker'"),
        ({"latent": np.zeros(3, np.float32)}, r"latent is float32 \[3\] in it"),
        ({"lm.position": np.array(-1)}, "lm.0.k"),
    ],
)
def test_a_damaged_snapshot_is_refused(
    backend: UtteranceBackend, damage: dict[str, Any], sentence: str
) -> None:
    talk = Talk(entries_of(pocket_source(), LONG))
    for _ in range(5):
        tick(backend, {0: talk})
    kept = backend.snapshot(0)
    with pytest.raises(UnsupportedError, match=sentence):
        backend.restore(1, replace(kept, tensors={**kept.tensors, **damage}))


def test_positions_of_a_snapshot_are_bounded(backend: UtteranceBackend) -> None:
    talk = Talk(entries_of(pocket_source(), LONG))
    tick(backend, {0: talk})
    kept, shape = backend.snapshot(0), backend.executor.shape
    text = kept.tensors["text"].tobytes().replace(b'"voice": 0', b'"voice": 99')
    with pytest.raises(UnsupportedError, match=rf"99 of them a voice's, of at most {shape.capacity} and"):
        backend.restore(1, replace(kept, tensors={**kept.tensors, "text": np.frombuffer(text, np.uint8)}))


def test_chunks_are_an_option_of_this_model_only() -> None:
    for checkpoint, tokens in (
        (exported_pocket(), 0),
        (exported_pocket(), 201),
        (load_checkpoint("echo"), 50),
    ):
        with pytest.raises(ConfigError, match=f"chunk_tokens is {tokens}; it can be 1 to 200, for Pocket"):
            make_backend("onnx", checkpoint, slots=1, options={"chunk_tokens": tokens})


@pytest.mark.parametrize(("recipe", "rounded"), [("int8", 0.1), ("int4", 0.5)])
def test_rounded_graphs_are_near(tmp_path: Path, recipe: str, rounded: float) -> None:
    """The rules of our recipes find the weights of the language model and of its head."""
    checkpoint = exported_pocket()
    path, small = checkpoint.file("onnx.lm"), tmp_path / "lm.onnx"
    report = quantize_graph(path, small, load_recipe("onnx", recipe))
    assert len(report.errors) == 16
    assert not report.halved  # the table of text is in the graph that reads
    random, found = np.random.default_rng(0), []
    inputs: dict[str, Any] = {}
    for tensor in checkpoint.graphs["lm"].inputs:
        inputs[tensor.name] = tensor.allocate(2)
    inputs["exec"][:] = True
    inputs["noise"][:] = random.standard_normal(inputs["noise"].shape)
    inputs["latent"][0] = np.nan
    for file in (path, small):
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        found.append(session.run(["next"], {name: array.copy() for name, array in inputs.items()})[0])
    error = np.linalg.norm(found[1] - found[0]) / np.linalg.norm(found[0])
    assert 0 < error < rounded


@pytest.mark.parametrize("kind", ["lsd", "drifting", "flow_matching", "pointwise"])
def test_every_head_makes_the_packages_latent(kind: str) -> None:
    from pocket_tts.models import flow_lm
    from pocket_tts.modules.mlp import SimpleMLPAdaLN

    torch.manual_seed(0)
    own = FlowNet(kind, 24, 2, 16, 6)
    theirs = SimpleMLPAdaLN(6, 24, 6, 16, 2, num_time_conds=len(own.time_embed))
    own.load_state_dict(theirs.state_dict())
    own.prepare()
    decode = {
        "lsd": flow_lm.lsd_decode,
        "drifting": flow_lm.drifting_decode,
        "flow_matching": flow_lm.ot_decode,
        "pointwise": flow_lm.pointwise_decode,
    }[kind]
    condition, noise = torch.randn(3, 16), torch.randn(3, 6)
    with torch.no_grad():
        wanted = decode(lambda *args: theirs(condition, *args), noise, 16 if kind == "flow_matching" else 1)
        torch.testing.assert_close(own(condition, noise), wanted, rtol=1e-5, atol=1e-5)


FLAGS = ("pad_with_spaces_for_short_inputs", "remove_semicolons", "append_terminal_punctuation")


@given(
    text=st.text("ab C.,;:!?\u2026-\u2013\"')\n \u2019", max_size=30),
    flags=st.tuples(*[st.booleans()] * 4),
    replaced=st.sampled_from([{}, {"\u2013": ",", '"': ""}]),
)
def test_text_is_written_as_the_package_writes_it(
    text: str, flags: tuple[bool, ...], replaced: dict[str, str]
) -> None:
    from pocket_tts.models.text_chunking import prepare_text_prompt

    rules = dict(zip((*FLAGS, "capitalize_first_letter"), flags, strict=True))
    ours = PocketText(lambda written: [ord(letter) for letter in written], 12.5, rules, replaced)
    try:
        written, tail = prepare_text_prompt(text, replace_characters=replaced, **rules)
    except (ValueError, IndexError):  # nothing is left, before or after the replacement
        assert ours.prepare(text) is None
        return
    assert ours.prepare(text) == ([ord(letter) for letter in written], tail + 2)


def test_a_recording_ends_as_the_package_ends_it() -> None:
    from pocket_tts.data.audio_utils import end_on_pause as theirs

    random = np.random.default_rng(0)
    for loud, silent in ((2000, 0), (3000, 2500), (100, 0), (0, 3000)):
        pcm: FloatArray = np.concatenate([random.standard_normal(loud), np.zeros(silent)]).astype(np.float32)
        np.testing.assert_allclose(
            end_on_pause(pcm, 24000), theirs(torch.from_numpy(pcm), 24000).numpy(), rtol=0, atol=1e-6
        )


def test_the_longest_speech_is_the_packages() -> None:
    model = upstream(pocket_source())
    for tokens in (1, 7, 50, 272):
        assert longest_frames(tokens, 12.5) == model._estimate_max_gen_len(tokens)


def test_the_folder_is_a_model_like_any_other() -> None:
    made, source = exported_pocket(), load_checkpoint(str(pocket_source()))
    assert (made.spec.family, made.spec.kind) == (source.spec.family, source.spec.kind)
    assert made.spec.generation == source.spec.generation
    assert made.spec.mimi == source.spec.mimi
    assert made.verify() == len(made.files)
