"""Conditions of a model: how they join its inputs, and their default values. Backends compute them.

``ConditionFuser`` and the conditioners of ``moshi/conditioners`` in kyutai-labs/moshi are the rule: a voice
is the source of cross-attention, a choice from a table is added to every input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import UnsupportedError
from antiphon.models.speaker import CONDITION

GUIDANCE: Final = 2.0
"""How closely models follow text and voice that take it as an input (upstream's default)."""

PROVIDER: Final = "condition_provider.conditioners"
"""What the names of conditioners' tensors begin with."""


def check_conditions(config: Mapping[str, Any]) -> None:
    """Check that a tts model's conditions are joined as in the published models.

    Raises:
        UnsupportedError: conditions that no published model has, or joined in another way.
    """
    fuser = config.get("fuser") or {}
    tables = {name for name, what in config["conditioners"].items() if what["type"] == "lut"}
    joined = {name: how for how in ("sum", "cross", "prepend") for name in fuser.get(how, [])}
    wanted = {**dict.fromkeys(tables, "sum"), CONDITION: "cross"}
    for name in config["conditioners"]:
        if wanted.get(name) != joined.get(name):
            raise UnsupportedError(
                f"the condition '{name}' is joined by {joined.get(name)!r}; only tables can be added, and "
                f"only {CONDITION} be looked at by cross-attention"
            )


def chosen_entry(config: Mapping[str, Any], name: str) -> int | None:
    """Which entry of a tts model's table we choose; None where it has no such value: no choice is made."""
    values = config["conditioners"][name]["lut"].get("possible_values") or []
    wanted = {"cfg": format(GUIDANCE, ".1f"), "control": "ok"}.get(name)
    return values.index(wanted) if wanted in values else None


def description_entry(config: Mapping[str, Any], family: str) -> int | None:
    """Which entry of its description's table Hibiki adds to every input: "very_good".

    None for a model without conditioners, and for tts, whose conditions are read apart.

    Raises:
        UnsupportedError: another family with conditioners.
    """
    conditioners = config.get("conditioners") or {}
    if not conditioners or family == "tts":
        return None
    if family != "hibiki" or set(conditioners) != {"description"}:
        raise UnsupportedError(f"a {family} model with the conditions {sorted(conditioners)} cannot be run")
    entry: int = conditioners["description"]["lut"]["possible_values"].index("very_good")
    return entry


def source_positions(config: Mapping[str, Any], count: int, dim: int) -> NDArray[np.float32]:
    """What is added to the ``count`` positions of a cross-attention source, ``[count, dim]``.

    Sines, cosines first (Vaswani et al. 2017, in upstream's order), or nothing.
    """
    if not config["fuser"].get("cross_attention_pos_emb"):
        return np.zeros((count, dim), np.float32)
    half, scale = dim // 2, config["fuser"].get("cross_attention_pos_emb_scale", 1)
    exponents = np.arange(half, dtype=np.float32) / np.float32(half - 1)
    phase = np.arange(count, dtype=np.float32)[:, None] / np.float32(10000.0) ** exponents
    sines: NDArray[np.float32] = np.float32(scale) * np.concatenate([np.cos(phase), np.sin(phase)], axis=-1)
    return sines
