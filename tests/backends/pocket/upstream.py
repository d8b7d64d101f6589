"""The package itself, with the noise of a row of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
import yaml

from antiphon.audio.files import read_audio
from antiphon.backends.base import FloatArray
from antiphon.backends.speaker import normal
from antiphon.models.catalog import load_checkpoint
from antiphon.models.pocket_shape import PocketShape
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

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


def says(monkeypatch: pytest.MonkeyPatch) -> Says:
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
    return shape.recorded(read_audio(folder / "voices" / name), spec)
