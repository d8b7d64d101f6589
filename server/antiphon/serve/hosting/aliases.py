"""Further names of the served models: NAME=MODEL, and ``*=MODEL`` for every name that no model has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from antiphon.errors import ConfigError, nearest
from antiphon.models.spec import PipelineKind

ANY: Final = "*"
NAME: Final = re.compile(r"[A-Za-z0-9._:/-]{1,100}")
"""What a client of another server calls a model: ``whisper-1``, ``Systran/faster-whisper-small``."""


def read_aliases(texts: Sequence[str], served: Mapping[str, PipelineKind]) -> list[tuple[str, str]]:
    """Each alias with the name of its model, of those that are ``served`` by name and kind.

    Raises:
        ConfigError: one is not NAME=MODEL, names no served model, or is taken.
    """
    pairs: list[tuple[str, str]] = []
    for text in texts:
        alias, _, model = text.partition("=")
        if model not in served:
            words = f"no model {model!r} is served; {nearest(model, served)}"
            raise ConfigError(
                f"alias = {text!r}: {words}" if model else f"alias = {text!r}: write NAME=MODEL"
            )
        if alias != ANY and not NAME.fullmatch(alias):
            raise ConfigError(
                f"alias = {text!r}: a name has 1 to 100 letters, digits and . _ : / -, or is * for any other"
            )
        others = [name for known, name in pairs if known == alias]
        if alias == ANY:
            others = [name for name in others if served[name] is served[model]]
        if alias in served or others:
            words = (
                f"{alias} is a model here" if alias in served else f"{alias} is the model {others[0]} already"
            )
            raise ConfigError(f"alias = {text!r}: {words}")
        pairs.append((alias, model))
    return pairs


def hint_of(name: str, model: str) -> str:
    """How an operator can serve ``model`` under a name that nothing has; "" for one that no alias can be."""
    return f"; to serve it under this name: --alias {name}={model}" if NAME.fullmatch(name) else ""
