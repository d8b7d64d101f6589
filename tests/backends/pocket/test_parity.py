"""The audio of a row equals the package's sample for sample, with the same noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
import yaml

from antiphon.backends.base import FloatArray
from antiphon.backends.pocket.row import normal
from antiphon.models.catalog import load_checkpoint
from antiphon.models.pocket import PocketShape
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from tests.backends.pocket.small import GREEDY, LONG, SAMPLED, entries_of, small_backend, speak
from tests.support.make_pocket_checkpoint import make_pocket_checkpoint

SHORT = "seven\u2013 eight"
Says: TypeAlias = Callable[[Any, str, str | Path, SamplingParameters], FloatArray]


def upstream(folder: Path) -> Any:
    """The package's model, decoding a frame at a time as we do."""
    from pocket_tts import TTSModel

    config = dict(load_checkpoint(str(folder)).raw_config)
    path = folder.parent / f"{folder.name}-absolute.yaml"
    path.write_text(yaml.safe_dump(config))
    model = TTSModel.load_model(config=path)
    model.max_decoder_frames_per_call = 1
    return model


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> Says:
    """Has the package speak a text in a voice with a row's noise instead of torch's."""
    from pocket_tts.models.flow_lm import FlowLMModel

    drawn: list[FloatArray] = []
    forward = FlowLMModel.forward

    def think(self: Any, sequence: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if sequence.shape[1] == 0:  # text or a voice is read, which draws noise for nothing
            drawn.insert(0, np.zeros(self.ldim, np.float32))
        return forward(self, sequence, *args, **kwargs)

    def draw(noise: torch.Tensor, mean: float, std: float) -> torch.Tensor:
        return noise.copy_(torch.from_numpy(drawn.pop(0) * std))

    def say(model: Any, text: str, voice: str | Path, parameters: SamplingParameters) -> FloatArray:
        model.temp = parameters.audio_temperature
        drawn[:] = [normal(parameters.audio_seed, step, model.flow_lm.ldim) for step in range(400)]
        with monkeypatch.context() as patched:
            patched.setattr(FlowLMModel, "forward", think)
            patched.setattr(torch.nn.init, "normal_", draw)
            state = model.get_state_for_audio_prompt(voice)
            said: FloatArray = model.generate_audio(state, text).numpy()
        return said

    return say


def voice_of(folder: Path, name: str) -> Prompt:
    spec = load_checkpoint(str(folder)).spec
    shape = PocketShape.of(spec)
    assert shape is not None
    if name.endswith(".safetensors"):
        return shape.read_voice(folder / "voices" / name)
    from antiphon.audio.files import read_audio

    return shape.recorded(read_audio(folder / "voices" / name), spec)


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
