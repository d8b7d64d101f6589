"""From a checkpoint to loaded modules on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from antiphon.backends.loading_errors import as_checkpoint_error
from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.guidance import GuidedGenerator
from antiphon.backends.torch.kernels.fused import is_fused
from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.quantised.int8 import int8_linears
from antiphon.backends.torch.quantised.stored import formats_of
from antiphon.backends.torch.weights.conditions import Conditions
from antiphon.backends.torch.weights.forms import check_forms
from antiphon.backends.torch.weights.lm_weights import load_lm
from antiphon.backends.torch.weights.mimi_weights import load_mimi
from antiphon.errors import UnsupportedError
from antiphon.models.guidance import UNGUIDED
from antiphon.models.script import ScriptRules
from antiphon.models.speaker import SpeakerShape
from antiphon.models.spec import PipelineKind

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint


def attention_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype attention runs in, and keys and values are kept in; None is that of the weights.

    On a CPU it is float32: a bfloat16 step of stt-1b at 8 rows spends four fifths of its time in
    bfloat16 attention (``lab/bench/cpu_models.py``).
    """
    return torch.float32 if device.type == "cpu" else None


def load_codec(checkpoint: Checkpoint, device: torch.device, attention: str = "auto") -> Mimi:
    """Load Mimi, always in float32, with as many codebooks as the model uses.

    ``attention`` is as in :func:`load_generator`; kernels asked for by name are the language model's.
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
    int8_kv: bool = False,
    rounds_input: bool = True,
    attention: str = "auto",
    conditions: Conditions | None = None,
    guidance: float = UNGUIDED,
) -> Generator:
    """Load the language model; ``int8_weights`` rounds the recipe's linears as they are loaded.

    Linears that the checkpoint has as INT8 are so in any case. ``rounds_input`` is for all of them.
    ``attention`` says by what a frame's attention runs: see
    :func:`antiphon.backends.torch.kernels.fused.is_fused`.
    ``conditions`` and ``guidance`` are for a tts model.

    Raises:
        UnsupportedError: the checkpoint has none, the attention asked for cannot run, or its weights are for
            CPUs only.
    """
    spec = checkpoint.spec
    if spec.lm is None:
        raise UnsupportedError(f"{spec.name} has no language model")
    is_fused(attention, device, spec.lm.dim // spec.lm.num_heads)  # refuse before anything is read
    is_tts = spec.kind is PipelineKind.TTS
    speakers = SpeakerShape.of(spec) if is_tts else None
    with as_checkpoint_error(spec.name, torch.OutOfMemoryError):
        model = load_lm(
            checkpoint.file("lm"),
            spec.lm.config,
            steps=spec.lm.dep_q,
            family=spec.family,
            lora=checkpoint.files.get("lora"),
            device=device,
            compute=Compute(dtype, attention_dtype(device), int8_kv, attention),
            cross_positions=0 if speakers is None else speakers.positions,
        )
    model = model.prepare(pack=True, int8=int8_weights, rounds_input=rounds_input)
    if device.type == "cuda":
        check_forms(spec.name, model)
    delay = ScriptRules.of(spec).audio_delay if is_tts else 0
    if guidance != UNGUIDED:
        pair = None if conditions is None else conditions.pair
        return GuidedGenerator(model, spec.lm, coefficient=guidance, conditions=pair, audio_delay=delay)
    if conditions is not None and conditions.constant is not None:
        model.condition = conditions.constant.to(model.dtype)
    return Generator(model, spec.lm, audio_delay=delay)


def quantization_of(model: LanguageModel) -> str:
    """What of a loaded model was rounded: "weights-int8+activations-int8+kv-int8", parts of it, or "none".

    Weights can be int4 too.
    """
    parts = [f"weights-{name}" for name in formats_of(model)]
    if any(layer.rounds_input for layer in int8_linears(model)):
        parts.append("activations-int8")
    if model.transformer.compute.int8_kv:
        parts.append("kv-int8")
    return "+".join(parts) or "none"
