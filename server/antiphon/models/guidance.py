"""Classifier-free guidance of a tts model: how closely it follows its text and voice.

Ho and Salimans 2022, "Classifier-free diffusion guidance". Some models were trained to be told a coefficient;
of the others, one that was trained with its text and voice left out now and then can be run twice, told and
not told, and be guided by the difference: ``cfg_coef`` of ``TTSModel`` in ``moshi/models/tts.py`` of
kyutai-labs/moshi.
"""

from __future__ import annotations

from typing import Final

from antiphon.errors import CheckpointFormatError, UnsupportedError
from antiphon.models.spec import ModelSpec
from antiphon.models.strict import check_type

UNGUIDED: Final = 1.0
MAX_GUIDANCE: Final = 10.0
"""Far above what is of use, which is 1.5 to 4: a larger number is a mistake."""

_TOLD: Final = "cfg"


def guidance_of(spec: ModelSpec, asked: float | None = None) -> float:
    """The coefficient a tts model is guided by: ``asked``, else its ``tts_config.cfg_coef``, else 1 (not).

    Raises:
        CheckpointFormatError: a coefficient out of range in the configuration.
        UnsupportedError: one out of range was asked for, or the model takes its own as an input.
    """
    published = spec.generation.get("tts_config", {}).get("cfg_coef", UNGUIDED)
    check_type(published, float, "tts_config.cfg_coef")
    if not UNGUIDED <= published <= MAX_GUIDANCE:
        raise CheckpointFormatError(
            f"tts_config.cfg_coef is {published:g}, it must be {UNGUIDED:g} to {MAX_GUIDANCE:g}"
        )
    guidance = float(published if asked is None else asked)
    if not UNGUIDED <= guidance <= MAX_GUIDANCE:
        raise UnsupportedError(f"guidance is {guidance:g}, it can be {UNGUIDED:g} to {MAX_GUIDANCE:g}")
    conditioners = {} if spec.lm is None else spec.lm.config.get("conditioners") or {}
    if guidance != UNGUIDED and conditioners.get(_TOLD, {}).get("lut", {}).get("possible_values"):
        raise UnsupportedError(
            f"{spec.name} has its guidance as a trained input; guidance of {guidance:g} on top of "
            "that would be another model"
        )
    return guidance
