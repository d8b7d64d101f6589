"""Making the mlx backend for a checkpoint: its options, checked, and what they mean for the loading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import mlx.core as mx

from antiphon.backends.checks import check_slots
from antiphon.backends.host import HostBackend
from antiphon.backends.mlx.backend import MlxFrames
from antiphon.backends.mlx.loading import load_modules, pick_device, pick_dtype
from antiphon.backends.mlx.tts import MlxTts
from antiphon.backends.tts import TtsBackend
from antiphon.errors import ConfigError, UnsupportedError
from antiphon.models.guidance import UNGUIDED, guidance_of
from antiphon.models.spec import PipelineKind

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint

COMPILE: Final = ("auto", "on", "off")


def make(
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    dtype: str | None = None,
    kv: str = "compute",
    compile: str = "auto",  # noqa: A002  (the option's name on the command line)
) -> HostBackend | TtsBackend:
    """Load a checkpoint into our own modules.

    ``device`` is "gpu" or "cpu" (None: the GPU where there is one). ``dtype`` is what the language model
    computes in (None: bfloat16 on a GPU, float32 on a CPU); matrices the checkpoint has in groups of a few
    bits stay so. ``kv`` says how its keys and values are kept: "compute" (in that dtype) or "int8".
    ``compile`` "on" has mlx fuse operations, which on a CPU takes a C++ compiler and minutes; "auto" does so
    on a GPU.

    Raises:
        UnsupportedError: a pipeline or an option that cannot be run.
        ConfigError: no such device, dtype or other option, or less than one slot.
        CheckpointFormatError: the weights and the configuration do not fit each other.
    """
    spec = checkpoint.spec
    check_slots(slots)
    if spec.kind is PipelineKind.TTS and (guidance := guidance_of(spec)) != UNGUIDED:
        raise UnsupportedError(
            f"{spec.name} is run twice a step, guided by {guidance:g}; the mlx backend does not, torch does"
        )
    if kv not in ("compute", "int8"):
        raise ConfigError(f"kv is '{kv}'; it can be compute or int8")
    if compile not in COMPILE:
        raise ConfigError(f"compile is '{compile}'; it can be {', '.join(COMPILE)}")
    mlx_device = pick_device(device)
    compiles = compile == "on" or (compile == "auto" and mlx_device.type == mx.DeviceType.gpu)
    with mx.stream(mlx_device):
        loaded = load_modules(checkpoint, pick_dtype(dtype, mlx_device), int8_kv=kv == "int8")
    if spec.kind is PipelineKind.TTS:
        speech = MlxTts(spec, loaded, device=mlx_device, compiles=compiles)
        return TtsBackend(spec, speech, slots=slots)
    return HostBackend(spec, MlxFrames(spec, loaded, device=mlx_device, compiles=compiles), slots=slots)
