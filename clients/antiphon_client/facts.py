"""What a server says about itself at ``/api/build_info``; a stock server says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server's own description, as far as it gives one; None where it is silent.

    ``memory`` is bytes by purpose ("rss", "weights", "state"), ``hardware`` one line naming the machine,
    ``raw`` the whole answer.
    """

    version: str | None = None
    model: str | None = None
    kind: str | None = None
    parameters: int | None = None
    format: str | None = None
    quantization: str | None = None
    backend: str | None = None
    device: str | None = None
    dtype: str | None = None
    slots: int | None = None
    silent_frames: int | None = None
    hardware: str | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)
