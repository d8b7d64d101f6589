"""Models on this machine: built in and in the hub's cache; and the memory for others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon.backends.machine import Gpu
from antiphon.errors import CheckpointNotFoundError
from antiphon.models.builtin import BUILTIN
from antiphon.models.catalog import builtin_folder
from antiphon.models.manifest import MANIFEST_NAME, Manifest, read_manifest
from antiphon_quantize.advice.families import AudioFamily
from antiphon_quantize.advice.fit import FitRequest, speech_that_fits


@dataclass(frozen=True, slots=True)
class Memory:
    """What a model has for itself here: a GPU's memory, or the machine's."""

    bytes: int
    where: str


def memory_here(gpus: Iterable[Gpu], host_bytes: int) -> Memory:
    """The largest GPU's memory; without one the machine's."""
    largest = max(gpus, key=lambda gpu: gpu.memory_bytes, default=None)
    return Memory(host_bytes, "memory") if largest is None else Memory(largest.memory_bytes, largest.name)


def builtin_manifests() -> list[Manifest]:
    """Those of the built-in models that this installation has, in the order of their names' table."""
    found = []
    for name in BUILTIN:
        try:
            found.append(read_manifest(builtin_folder(name) / MANIFEST_NAME))
        except CheckpointNotFoundError:
            continue
    return found


def hub_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the hub's client keeps what it fetched, by its own variables."""
    home = environment.get("HF_HOME")
    cache = Path(environment.get("XDG_CACHE_HOME") or "~/.cache")
    root = Path(home) if home else cache / "huggingface"
    return Path(environment.get("HF_HUB_CACHE") or root / "hub").expanduser()


def cached_repositories(cache: Path) -> dict[str, int]:
    """The repositories in the hub's cache, each with the bytes it holds; a fetch that was begun counts."""
    found = {}
    for folder in sorted(cache.glob("models--*--*")):
        owner, _, name = folder.name.removeprefix("models--").partition("--")
        blobs = (folder / "blobs").glob("*")
        found[f"{owner}/{name}"] = sum(blob.stat().st_size for blob in blobs if blob.is_file())
    return found


def sessions_here(family: AudioFamily, memory: Memory) -> str:
    """The precision and the most sessions that memory holds of a model: "int8, 12", or "no"."""
    fits = speech_that_fits([family], FitRequest(memory.bytes))
    return f"{fits[0].precision}, {fits[0].rows}" if fits else "no"
