"""How a token is chosen: one normative description for every backend.  (numpy reference below)"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """What one session asks of the sampler. Temperature 0 is greedy, ``repetition_penalty`` 1 is none."""

    text_temperature: float = 0.7
    text_topk: int = 25
    audio_temperature: float = 0.8
    audio_topk: int = 250
    pad_mult: float = 0.0
    repetition_penalty_context: int = 64
    repetition_penalty: float = 1.0
    text_seed: int = 0
    audio_seed: int = 0
    max_steps: int | None = None
