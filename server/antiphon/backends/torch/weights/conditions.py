"""What a tts model is conditioned on besides its text: whose voice to speak with, and how closely to follow.

``ConditionFuser`` and the conditioners of ``moshi/conditioners`` in kyutai-labs/moshi are the rule: a voice
is the source of cross-attention, as many positions for everybody; a choice from a table is added to every
input. Computed in float32, once: a voice becomes keys and values of a row, a choice a constant of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from antiphon.backends.torch.weights.lm_weights import dequantized, embed_choice
from antiphon.models.conditioning import PROVIDER, check_conditions, chosen_entry, source_positions
from antiphon.models.speaker import CONDITION, SpeakerShape
from antiphon.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditioners of one model: its constant, and what makes a cross-attention source of a voice.

    ``constant`` float32 ``[1, dim]`` is added to every input, ``untold [1, dim]`` instead where nothing is
    to be told (see :mod:`antiphon.backends.torch.guidance`). ``projection`` is ``[dim, width]``, ``empty``
    ``[dim]`` stands for no voice, ``positions`` ``[5 * T, dim]`` is added to everything.
    """

    constant: Tensor | None
    untold: Tensor | None = None
    shape: SpeakerShape | None = None
    projection: Tensor | None = None
    empty: Tensor | None = None
    positions: Tensor | None = None

    @property
    def pair(self) -> Tensor | None:
        """What is added to a guided row's inputs, ``[2, dim]``: told, and not."""
        if self.constant is None or self.untold is None:
            return None
        return torch.cat([self.constant, self.untold])

    def source(self, speakers: np.ndarray[Any, np.dtype[np.float32]] | None) -> Tensor:
        """The source ``[5 * T, dim]`` of up to five voices, float32 ``[V, T, width]``; None for no voice."""
        assert self.shape is not None
        assert self.empty is not None
        assert self.positions is not None
        assert self.projection is not None
        source = self.empty.expand(self.shape.positions, -1).clone()
        if speakers is not None:
            voices = torch.from_numpy(np.ascontiguousarray(speakers)).to(source.device)
            said = voices.flatten(0, 1) @ self.projection.T
            source[: len(said)] = said
        return source + self.positions


def load_conditions(path: Path, spec: ModelSpec, device: torch.device) -> Conditions:
    """Read a model's conditioners from its file.

    Raises:
        UnsupportedError: conditions that no published model has, or joined in another way.
    """
    config = {} if spec.lm is None else spec.lm.config
    if not config.get("conditioners"):
        return Conditions(None)
    check_conditions(config)
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(PROVIDER)]  # noqa: SIM118 (no mapping)
        published = {name: file.get_tensor(name) for name in names}
    tables = config["fuser"].get("sum") or []
    constant = untold = None
    if tables:
        constant = torch.stack([_choice(published, config, name) for name in tables]).sum(0).to(device)
        untold = torch.stack([_no_choice(published, config, name) for name in tables]).sum(0).to(device)
    shape = SpeakerShape.of(spec)
    if shape is None:
        return Conditions(constant, untold)
    name = f"{PROVIDER}.{CONDITION}"
    projection = dequantized(published, f"{name}.output_proj.weight").float()
    empty = published.get(f"{name}.learnt_padding", torch.zeros(projection.shape[0])).float().reshape(-1)
    positions = torch.from_numpy(source_positions(config, shape.positions, projection.shape[0]))
    return Conditions(constant, untold, shape, projection.to(device), empty.to(device), positions.to(device))


def _choice(published: Mapping[str, Tensor], config: Mapping[str, Any], name: str) -> Tensor:
    """The vector ``[1, dim]`` of what we choose from a table; where it has no such value, of no choice."""
    index = chosen_entry(config, name)
    return _no_choice(published, config, name) if index is None else embed_choice(published, name, index)


def _no_choice(published: Mapping[str, Tensor], config: Mapping[str, Any], name: str) -> Tensor:
    """The vector ``[1, dim]`` of no choice from a table: what was learnt for it, or nothing."""
    padding = published.get(f"{PROVIDER}.{name}.learnt_padding", torch.zeros(config["dim"]))
    return padding.float().reshape(1, -1)
