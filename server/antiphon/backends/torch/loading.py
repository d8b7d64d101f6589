"""Loads a checkpoint into a torch backend, after checking the backend's options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from antiphon.backends.host import HostBackend
from antiphon.backends.torch.frames import TorchFrames
from antiphon.backends.torch.generation import Generator, GuidedGenerator
from antiphon.backends.torch.kernels.fused import ATTENTION, is_fused, missing_for_kernels
from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.quantised import check_forms
from antiphon.backends.torch.tts import TorchTts
from antiphon.backends.torch.weights import Conditions, load_conditions, load_lm, load_mimi
from antiphon.backends.torch_devices import open_device, pick_dtype
from antiphon.backends.tts import TtsBackend
from antiphon.errors import ConfigError, UnsupportedError
from antiphon.log import Log
from antiphon.models.checkpoint import as_checkpoint_error
from antiphon.models.conditioning import UNGUIDED, SpeakerShape, guidance_of
from antiphon.models.script import ScriptRules
from antiphon.models.spec import PipelineKind

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint


ROUNDING: Final = ("compute", "int8")
"""Values of the options ``weights`` and ``activations``."""

MOST_OVERCOMMIT: Final = 8.0
"""The largest overcommit: a call of half a minute fills an eighth of Moshi's window."""


def attention_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of attention, keys and values; None means the dtype of the weights.

    On a CPU it is float32: a bfloat16 step of stt-1b at 8 rows spends four fifths of its time in bfloat16
    attention (``lab/bench/cpu_models.py``).
    """
    return torch.float32 if device.type == "cpu" else None


def load_codec(checkpoint: Checkpoint, device: torch.device, attention: str = "auto") -> Mimi:
    """Load Mimi, always in float32, with the codebooks that the model uses.

    ``attention`` is as in :func:`load_generator`; kernels requested by name are for the language model only.
    """
    spec = checkpoint.spec.mimi
    with as_checkpoint_error(checkpoint.spec.name, torch.OutOfMemoryError):
        mimi = load_mimi(
            checkpoint.file("mimi"),
            spec.config,
            spec.codebooks,
            device,
            attention="torch" if attention == "torch" else "auto",
        )
    return mimi.prepare(pack=True)


def load_generator(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    *,
    int8_weights: bool = False,
    kv: KVForm = KVForm.COMPUTE,
    rounds_input: bool | None = None,
    attention: str = "auto",
    conditions: Conditions | None = None,
    guidance: float = UNGUIDED,
) -> Generator:
    """Load the language model; ``int8_weights`` rounds the recipe's linears as they are loaded.

    Linears that are INT8 or INT4 in the checkpoint remain so. ``rounds_input``: whether the inputs of these
    linears are rounded to INT8; None rounds only inputs of INT8 linears. ``attention`` chooses the
    implementation of a frame's attention: see :func:`antiphon.backends.torch.kernels.fused.is_fused`.
    ``conditions`` and ``guidance`` are for a tts model.

    Raises:
        UnsupportedError: the checkpoint has no language model, the requested attention cannot run, or its
            weights are for CPUs only.
    """
    spec = checkpoint.spec
    if spec.lm is None:
        raise UnsupportedError(f"{spec.name} has no language model")
    head_dim = spec.lm.dim // spec.lm.num_heads
    if not is_fused(attention, device, head_dim, kv) and device.type == "cuda" and attention == "auto":
        needs = " and ".join(missing_for_kernels(device, head_dim, kv))
        Log(__name__).warning("GPU kernels cannot run; ticks are slow", device=str(device), needs=needs)
    is_tts = spec.kind is PipelineKind.TTS
    speakers = SpeakerShape.of(spec) if is_tts else None
    with as_checkpoint_error(spec.name, torch.OutOfMemoryError):
        model = load_lm(
            checkpoint.file("lm"),
            spec.lm.config,
            steps=spec.lm.dep_q,
            family=spec.family,
            lora=checkpoint.files.get("lora"),
            compute=Compute(dtype, attention_dtype(device), kv, attention),
            cross_positions=0 if speakers is None else speakers.positions,
        )
        model.prepare(pack=True, int8=int8_weights, rounds_input=rounds_input, device=device)
    if device.type == "cuda":
        check_forms(spec.name, model)
    delay = ScriptRules.of(spec).audio_delay if is_tts else 0
    if guidance != UNGUIDED:
        pair = None if conditions is None else conditions.pair
        return GuidedGenerator(model, spec.lm, coefficient=guidance, conditions=pair, audio_delay=delay)
    if conditions is not None and conditions.constant is not None:
        model.condition = conditions.constant.to(model.dtype)
    return Generator(model, spec.lm, audio_delay=delay)


def make(
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    weights: str = "compute",
    activations: str | None = None,
    kv: str = "compute",
    attention: str = "auto",
    guidance: float | None = None,
    overcommit: float = 1.0,
) -> HostBackend | TtsBackend:
    """Load a checkpoint into this package's modules and return its backend.

    ``dtype`` is the dtype of the language model (None: float32 on a CPU, bfloat16 elsewhere). ``weights`` is
    the format of its linears, ``kv`` of its keys and values: "compute" (that dtype, or INT8 if the checkpoint
    is INT8) or "int8"; ``kv`` may be any :class:`KVForm`. ``activations`` is the format of inputs of INT8 and
    INT4 linears: "int8" rounds them, "compute" does not, which is more exact and slower; None rounds only
    inputs of INT8 linears. ``threads`` is the number of torch's threads on a CPU, process-wide (None: all
    usable cores but one). ``attention`` chooses the implementation of the language model's frame: "triton"
    means this package's kernels for attention and the operations around it, "torch" means torch's operations;
    "auto" means the kernels if they can run. ``guidance`` is the strength with which a tts model without a
    trained coefficient follows its text and voice (None: the coefficient of its configuration), see
    :func:`antiphon.models.conditioning.guidance_of`. ``overcommit`` divides the memory of keys and values
    that all rows together could fill: rows take pages as they grow, and if no page is free the youngest row
    ends (1: each row has its own pages).

    Raises:
        UnsupportedError: an option that this device does not support. ConfigError: the device, the dtype or
            another option does not exist, or there is less than one slot or thread.
    """
    spec = checkpoint.spec
    for option, value, forms in (
        ("weights", weights, ROUNDING),
        ("activations", activations, ROUNDING),
        ("kv", kv, tuple(KVForm)),
    ):
        if value is not None and value not in forms:
            raise ConfigError(f"{option} is '{value}'; it can be {', '.join(forms[:-1])} or {forms[-1]}")
    if not 1 <= overcommit <= MOST_OVERCOMMIT:
        raise ConfigError(f"overcommit is {overcommit:g}; it can be 1 to {MOST_OVERCOMMIT:g}")
    if spec.lm is None and overcommit > 1:
        raise ConfigError(f"overcommit is {overcommit:g}, but a {spec.kind} model has no keys and values")
    if spec.kind is PipelineKind.TTS and overcommit > 1:
        # A row restarts for every text, so its pages would not show the age of its call.
        raise ConfigError(f"overcommit is {overcommit:g}, but rows of a {spec.kind} model are not shared")
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
        kv=KVForm(kv),
        rounds_input=None if activations is None else activations == "int8",
        attention=attention,
        conditions=conditions,
        guidance=coefficient,
    )
    if conditions is None:
        return HostBackend(spec, TorchFrames(spec, mimi, generator, overcommit=overcommit), slots=slots)
    return TtsBackend(spec, TorchTts(spec, mimi, generator, conditions), slots=slots)
