"""compose.yaml as parsed by Docker Compose: merged anchors, ``${NAME:-default}`` substituted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "compose.yaml"
KEYS = ROOT / "deploy" / "keys.yaml"

_REPLACED = ("command", "entrypoint", "test")
"""Lists that Compose replaces as a whole."""

_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def interpolate(text: str, values: Mapping[str, str]) -> str:
    """``text`` with every ``${NAME:-default}`` replaced by the value of NAME, or the default."""
    return _VARIABLE.sub(lambda match: values.get(match[1]) or match[2], text)


@dataclass(frozen=True)
class Service:
    """One service: what it runs, with what environment, and where its files come from."""

    name: str
    raw: Mapping[str, Any]

    @property
    def argv(self) -> list[str]:
        """Entrypoint and command."""
        return [*self.raw.get("entrypoint", []), *self.raw.get("command", [])]

    @property
    def environment(self) -> dict[str, str]:
        return dict(self.raw.get("environment", {}))

    @property
    def dns_names(self) -> set[str]:
        """By what other services find it."""
        networks = self.raw["networks"]
        aliases = networks["inside"].get("aliases", []) if isinstance(networks, dict) else []
        return {self.name, *aliases}

    def mounts(self, secrets: Mapping[str, Any]) -> dict[str, Path]:
        """Files and folders of the host by their paths in the container, the longest path first."""
        pairs = [volume.split(":") for volume in self.raw.get("volumes", [])]
        found = {pair[1]: ROOT / pair[0] for pair in pairs if pair[0].startswith((".", "/"))}
        for entry in self.raw.get("secrets", []):
            source, target = (entry, entry) if isinstance(entry, str) else (entry["source"], entry["target"])
            found[f"/run/secrets/{target}"] = ROOT / secrets[source]["file"]
        return dict(sorted(found.items(), key=lambda pair: -len(pair[0])))


def read_compose(values: Mapping[str, str] | None = None, overrides: Sequence[Path] = ()) -> dict[str, Any]:
    """The whole file as plain data, with what stands in ``overrides`` merged into it as Compose does."""
    data: dict[str, Any] = {}
    for path in (COMPOSE, *overrides):
        data = _merge(data, yaml.safe_load(interpolate(path.read_text(), values or {})))
    return data


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged, lists appended, but for commands; what is left is replaced."""
    merged = dict(below)
    for key, value in above.items():
        present = merged.get(key)
        if isinstance(value, dict) and isinstance(present, dict):
            merged[key] = _merge(present, value)
        elif isinstance(value, list) and isinstance(present, list) and key not in _REPLACED:
            merged[key] = [*present, *value]
        else:
            merged[key] = value
    return merged


def services(values: Mapping[str, str] | None = None, overrides: Sequence[Path] = ()) -> dict[str, Service]:
    """Every service by name."""
    return {name: Service(name, raw) for name, raw in read_compose(values, overrides)["services"].items()}
