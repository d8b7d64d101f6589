"""Making the torch backend for a checkpoint: its options, checked, and what they mean for the loading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.backends.checks import check_slots
from antiphon.backends.host import HostBackend
from antiphon.backends.torch.frames import TorchFrames
from antiphon.backends.torch.kernels.fused import ATTENTION
from antiphon.backends.torch.tts import TorchTts
from antiphon.backends.torch.weights.conditions import load_conditions
from antiphon.backends.torch.weights.loading import load_codec, load_generator
from antiphon.backends.torch_devices import open_device, pick_dtype
from antiphon.backends.tts import TtsBackend
from antiphon.errors import ConfigError
from antiphon.models.guidance import UNGUIDED, guidance_of
from antiphon.models.spec import PipelineKind

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint


def make(
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    weights: str = "compute",
    activations: str = "int8",
    kv: str = "compute",
    attention: str = "auto",
    guidance: float | None = None,
) -> HostBackend | TtsBackend:
    """Load a checkpoint into our own modules.

    ``dtype`` is the language model's (None: float32 on a CPU, bfloat16 elsewhere). ``weights`` and
    ``kv`` say how its linears, and its keys and values, are kept: "compute" (in that dtype, or as INT8
    where the checkpoint has them so) or "int8". ``activations`` "compute" leaves the inputs of INT8
    linears as they are, which is nearer to the original and slower. ``threads`` is how many threads torch
    may use on a CPU, process-wide (None: all cores it may use but one). ``attention`` is by what a frame of
    the language model runs: "triton", our kernels for attention and all around it, or "torch"; "auto" is the
    kernels where they can run. ``guidance`` is how closely a tts model follows that is not told so (None:
    what its configuration says), see :func:`antiphon.models.guidance.guidance_of`.

    Raises:
        UnsupportedError: an option that cannot be run.
        ConfigError: no such device, dtype or other option, or less than one slot or thread.
    """
    spec = checkpoint.spec
    check_slots(slots)
    for option, value in (("weights", weights), ("activations", activations), ("kv", kv)):
        if value not in ("compute", "int8"):
            raise ConfigError(f"{option} is '{value}'; it can be compute or int8")
    if attention not in ATTENTION:
        raise ConfigError(f"attention is '{attention}'; it can be {', '.join(ATTENTION)}")
    torch_device = open_device(device, threads)
    lm_dtype = pick_dtype(dtype, torch_device, ("float32", "bfloat16"))
    mimi = load_codec(checkpoint, torch_device, attention)
    if spec.lm is None:
        return HostBackend(spec, TorchFrames(spec, mimi, None), slots=slots)
    conditions, coefficient = None, UNGUIDED
    if spec.kind is PipelineKind.TTS:
        coefficient = guidance_of(spec, guidance)
        conditions = load_conditions(checkpoint.file("lm"), spec, torch_device)
    elif guidance is not None:
        raise ConfigError(f"guidance is {guidance:g}, but a {spec.kind} model is not guided")
    generator = load_generator(
        checkpoint,
        torch_device,
        lm_dtype,
        int8_weights=weights == "int8",
        int8_kv=kv == "int8",
        rounds_input=activations == "int8",
        attention=attention,
        conditions=conditions,
        guidance=coefficient,
    )
    if conditions is None:
        return HostBackend(spec, TorchFrames(spec, mimi, generator), slots=slots)
    return TtsBackend(spec, TorchTts(spec, mimi, generator, conditions), slots=slots)
