"""Calibration data: inputs of a model's linears, recorded while it runs.

The model is served as it will be: recordings through its own codec, its own sampled text and voice. Rows go
to files as they come, so that recording takes no memory beyond the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from antiphon.audio.files import read_audio
from antiphon.backends.base import Backend, FloatArray, StepInputs
from antiphon.backends.registry import make_backend
from antiphon.errors import ConfigError, UnsupportedError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from antiphon_quantize.gate_torch import pipeline_of

Progress = Callable[[int, int, str], None]

MOST_FRAMES = 3000
"""Frames that are listened to: four minutes, and as many rows of each linear (Moshi 7B: 4.5 GB in all)."""

KINDS = (PipelineKind.DUPLEX, PipelineKind.STT)


class RowFiles:
    """The rows of each linear, ``[n, in]``, in files of one folder, in ``dtype``."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        """Use the folder, which may hold rows already."""
        self.folder, self.dtype = folder, dtype

    def append(self, name: str, rows: Tensor) -> None:
        """Add rows ``[..., in]``."""
        data = rows.detach().to(self.dtype).reshape(-1).view(torch.uint8)
        with (self.folder / name).open("ab") as file:
            file.write(data.numpy().data)

    def read(self, name: str, width: int) -> Tensor | None:
        """All rows of a linear in float32, ``[n, width]``; None if there are none."""
        path = self.folder / name
        if not path.exists():
            return None
        data = torch.from_numpy(np.fromfile(path, dtype=np.uint8))
        return data.view(self.dtype).view(-1, width).float()


def load_recordings(paths: Sequence[Path], sample_rate: int) -> list[FloatArray]:
    """Recordings ``[N]`` float32, one after the other.

    Raises:
        AudioError: a file is not there, or is not audio that can be read.
    """
    return [read_audio(path, sample_rate) for path in paths]


def record_rows(
    checkpoint: Checkpoint,
    recordings: Sequence[FloatArray],
    linears: Collection[str],
    files: RowFiles,
    progress: Progress,
) -> int:
    """Let the model listen, and keep the inputs of the named linears. Returns the frames it heard.

    Raises:
        UnsupportedError: it is no model that hears.
        ConfigError: the recordings are shorter than a frame.
    """
    spec = checkpoint.spec
    if spec.kind not in KINDS:
        raise UnsupportedError(f"{spec.name} is a {spec.kind} model: it listens to no recording")
    frames = _frames(recordings, spec.mimi.frame_samples)
    dtype = str(files.dtype).removeprefix("torch.")
    backend = make_backend("torch", checkpoint, slots=1, device="cpu", options={"dtype": dtype})
    backend.set_parameters(0, SamplingParameters.from_generation(spec.generation))
    hooks = _listen_in(backend, linears, files)
    try:
        row = np.zeros(1, np.int32)
        for done, (is_first, pcm) in enumerate(frames):
            progress(done, len(frames), "frames heard")
            backend.step(StepInputs(row, np.array([is_first]), pcm[None]))
    finally:
        for hook in hooks:
            hook.remove()
    progress(len(frames), len(frames), "frames heard")
    return len(frames)


def _frames(recordings: Sequence[FloatArray], samples: int) -> list[tuple[bool, FloatArray]]:
    """Whole frames of all recordings, up to ``MOST_FRAMES``, and whether each is the first of its own."""
    cut = [pcm[: len(pcm) // samples * samples].reshape(-1, samples) for pcm in recordings]
    frames = [(index == 0, frame) for pcm in cut for index, frame in enumerate(pcm)]
    if not frames:
        total = sum(map(len, recordings))
        raise ConfigError(f"{len(recordings)} recordings of {total} samples; a frame has {samples}")
    return frames[:MOST_FRAMES]


def _listen_in(backend: Backend, linears: Collection[str], files: RowFiles) -> list[Any]:
    generator = pipeline_of(backend).generator
    assert generator is not None

    def hook_of(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, inputs: files.append(name, inputs[0])

    modules = dict(generator.model.named_modules())
    return [modules[name].register_forward_pre_hook(hook_of(name)) for name in linears if name in modules]
