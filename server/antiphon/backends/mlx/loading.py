"""Loads a checkpoint into an mlx backend, after checking the backend's options."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import mlx.core as mx

from antiphon.backends.host import HostBackend
from antiphon.backends.mlx.executor import Loaded, MlxFrames, MlxTts
from antiphon.backends.mlx.generation import Generator
from antiphon.backends.mlx.layers import Matrix, Weights, load_arrays
from antiphon.backends.mlx.lm import load_conditions, load_lm
from antiphon.backends.mlx.mimi import load_mimi
from antiphon.backends.tts import TtsBackend
from antiphon.errors import ConfigError, UnsupportedError
from antiphon.models.checkpoint import as_checkpoint_error
from antiphon.models.conditioning import UNGUIDED, SpeakerShape, guidance_of
from antiphon.models.script import ScriptRules
from antiphon.models.spec import PipelineKind

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint

DTYPES: Final[Mapping[str, mx.Dtype]] = {
    "float32": mx.float32,
    "bfloat16": mx.bfloat16,
    "float16": mx.float16,
}


def pick_dtype(name: str | None, device: mx.Device) -> mx.Dtype:
    """The language model's dtype by name; None is float32 on a CPU and bfloat16 on a GPU.

    Raises:
        ConfigError: an unknown dtype.
    """
    if name is None:
        return mx.float32 if device.type == mx.DeviceType.cpu else mx.bfloat16
    if name not in DTYPES:
        raise ConfigError(f"no dtype is called '{name}'; there are: {', '.join(DTYPES)}")
    return DTYPES[name]


def pick_device(name: str | None) -> mx.Device:
    """A device by name; None is the GPU if there is one.

    Raises:
        ConfigError: an unknown device, or a machine without a GPU for mlx.
    """
    if name is None:
        return mx.default_device()
    if name not in ("cpu", "gpu"):
        raise ConfigError(f"no device of mlx is called '{name}'; there are: cpu, gpu")
    kind = mx.DeviceType.cpu if name == "cpu" else mx.DeviceType.gpu
    if not mx.is_available(mx.Device(kind)):
        raise ConfigError(f"device {name} was requested, but this mlx ({version('mlx')}) has none")
    return mx.Device(kind)


def load_modules(checkpoint: Checkpoint, dtype: mx.Dtype, *, int8_kv: bool) -> Loaded:
    """Load Mimi, always in float32, and the language model if there is one.

    Raises:
        CheckpointFormatError: the weights do not match the configuration.
        UnsupportedError: the checkpoint has a part that this backend does not run.
    """
    spec = checkpoint.spec
    if "lora" in checkpoint.files:
        raise UnsupportedError(f"{spec.name} has a LoRA; merge it into the weights first")
    with as_checkpoint_error(spec.name):
        mimi = load_mimi(checkpoint.file("mimi"), spec.mimi.config, spec.mimi.codebooks)
        generator = conditions = None
        if spec.lm is not None:
            is_tts = spec.kind is PipelineKind.TTS
            speakers = SpeakerShape.of(spec) if is_tts else None
            model = load_lm(
                checkpoint.file("lm"),
                spec.lm.config,
                steps=spec.lm.dep_q,
                family=spec.family,
                dtype=dtype,
                int8_kv=int8_kv,
                cross_positions=0 if speakers is None else speakers.positions,
            )
            if is_tts:
                arrays = load_arrays(checkpoint.file("lm"))
                conditions = load_conditions(Weights(arrays, spec.name, mx.float32), spec)
                if conditions.constant is not None:
                    model.condition = conditions.constant.astype(dtype)
            delay = ScriptRules.of(spec).audio_delay if is_tts else 0
            generator = Generator(model, spec.lm, audio_delay=delay)
        weights, bits = _weights_of([mimi, conditions, *([] if generator is None else [generator.model])])
        for array in weights:  # one by one, so that the memory of the read file can be freed at once
            mx.eval(array)
    return Loaded(mimi, generator, conditions, bits, sum(array.nbytes for array in weights))


def _weights_of(modules: list[object]) -> tuple[list[mx.array], tuple[int, ...]]:
    """Every array of the modules, each once, and the bits of their quantised matrices."""
    arrays: dict[int, mx.array] = {}
    bits: set[int] = set()
    waiting, seen = list(modules), set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, mx.array):
            arrays[id(value)] = value
        elif isinstance(value, list | tuple):
            waiting.extend(value)
        elif isinstance(value, Matrix):
            waiting.extend(value.arrays)
            bits |= {value.bits} - {0}
        elif type(value).__module__.startswith(__package__):
            names = getattr(value, "__dataclass_fields__", None) or vars(value)
            waiting.extend(getattr(value, name) for name in names)
    return list(arrays.values()), tuple(sorted(bits))


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
    """Load a checkpoint and return its backend.

    ``device`` is "gpu" or "cpu" (None: the GPU if there is one). ``dtype`` is the language model's compute
    dtype (None: bfloat16 on a GPU, float32 on a CPU); matrices that the checkpoint quantises in groups remain
    so. ``kv`` is the format of its keys and values: "compute" (that dtype) or "int8". With ``compile`` "on"
    mlx fuses operations, which on a CPU needs a C++ compiler and takes minutes; "auto" fuses them only on a
    GPU.

    Raises:
        UnsupportedError: an unsupported pipeline or option.
        ConfigError: an unknown device, dtype or other option, or fewer than one slot.
        CheckpointFormatError: the weights do not match the configuration.
    """
    spec = checkpoint.spec
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
