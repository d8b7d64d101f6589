"""The audio of a row equals the package's sample for sample, with the same noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from antiphon.models.catalog import load_checkpoint
from tests.backends.pocket.small import GREEDY, LONG, SAMPLED, entries_of, small_backend, speak
from tests.backends.pocket.upstream import Says, says, upstream, voice_of
from tests.support.make_pocket_checkpoint import make_pocket_checkpoint

SHORT = "seven\u2013 eight"


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> Says:
    return says(monkeypatch)


@pytest.mark.parametrize("flow", ["lsd", "drifting", "flow_matching", "pointwise"])
def test_every_sampler_says_what_the_package_says(flow: str, tmp_path: Path, wanted: Says) -> None:
    kind = "tokenizers" if flow == "drifting" else "sentencepiece"
    folder = make_pocket_checkpoint(tmp_path / flow, flow=flow, tokenizer=kind)
    backend = small_backend(folder, slots=1)
    model = upstream(folder)
    for parameters in (SAMPLED, GREEDY):
        backend.prime(0, voice_of(folder, "calm.safetensors"))
        said = speak(backend, entries_of(folder, SHORT), parameters=parameters, is_primed=True)
        heard = wanted(model, SHORT, str(folder / "voices" / "calm.safetensors"), parameters)
        np.testing.assert_array_equal(said.audio, heard)
    backend.close()


def test_a_text_of_several_chunks_says_what_the_package_says(pocket_folder: Path, wanted: Says) -> None:
    """The package draws once more at each chunk's end than it is heard, and so do we."""
    backend = small_backend(pocket_folder, slots=1)
    backend.prime(0, voice_of(pocket_folder, "calm.safetensors"))
    said = speak(backend, entries_of(pocket_folder, LONG), is_primed=True)
    backend.close()
    heard = wanted(upstream(pocket_folder), LONG, str(pocket_folder / "voices" / "calm.safetensors"), SAMPLED)
    np.testing.assert_array_equal(said.audio, heard)
    assert said.told[0][0] == 0
    assert [index for _, index in said.told] == sorted(index for _, index in said.told)
    assert len(said.told) == 2


def test_a_recording_is_the_packages_voice(pocket_folder: Path, wanted: Says) -> None:
    """The recording has a whole number of frames, so the package hears what we hear."""
    backend = small_backend(pocket_folder, slots=1)
    voice = voice_of(pocket_folder, "ring.wav")
    while not backend.prime(0, voice).is_done:
        pass
    said = speak(backend, entries_of(pocket_folder, SHORT), is_primed=True)
    heard = wanted(upstream(pocket_folder), SHORT, pocket_folder / "voices" / "ring.wav", SAMPLED)
    np.testing.assert_allclose(said.audio, heard, rtol=0, atol=2e-6)
    progress = backend.prime(0, voice)
    assert (progress.is_done, progress.is_copied) == (True, True)
    again = speak(backend, entries_of(pocket_folder, SHORT), is_primed=True)
    np.testing.assert_array_equal(again.audio, said.audio)
    backend.prime(0, voice_of(pocket_folder, "calm.safetensors"))
    other = speak(backend, entries_of(pocket_folder, SHORT), is_primed=True)
    assert not np.array_equal(other.audio[: len(said.audio)], said.audio[: len(other.audio)])
    backend.close()


def test_both_tokenizers_cut_alike(tmp_path: Path, pocket_folder: Path) -> None:
    folder = make_pocket_checkpoint(tmp_path / "json", tokenizer="tokenizers")
    tokenizers = [load_checkpoint(str(each)).text_tokenizer() for each in (folder, pocket_folder)]
    json, pieces = tokenizers
    assert json is not None
    assert pieces is not None
    assert json.vocabulary == pieces.vocabulary
    for text in (*LONG.split(), LONG):
        assert json.encode(text) == pieces.encode(text)
        assert json.decode(json.encode(text)) == pieces.decode(pieces.encode(text))
    assert json.piece(json.encode("the")[0]) == pieces.piece(pieces.encode("the")[0])
    assert json.piece(99999) == ""
