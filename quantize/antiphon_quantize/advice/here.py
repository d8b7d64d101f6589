"""Models on this machine: built in and in the hub's cache; and the memory for others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from antiphon.backends.machine import Gpu
from antiphon.errors import CheckpointNotFoundError
from antiphon.models.builtin import BUILTIN
from antiphon.models.catalog import builtin_folder
from antiphon.models.manifest import MANIFEST_NAME, Manifest, read_manifest
from antiphon_quantize.advice.families import AudioFamily, SpeechFamily
from antiphon_quantize.advice.fit import FitRequest, sessions_of, speech_that_fits

CORE_BYTES_PER_S: Final = 22.3e9
MACHINE_BYTES_PER_S: Final = 90e9
"""What a core reads, as measured on two (docs/benchmarks/cpu-7b.md), and the most that all cores do."""

SHARE_REACHED: Final = 0.53
"""Of that rate, with INT4 weights: moshi-7b takes 173 ms a frame on two cores."""

CPU_LIMIT_MS: Final = 68.0
"""A frame of 80 ms, less the reserve of slots = auto."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a model has for itself here: a GPU's memory, or the machine's with some ``cores`` (0: a GPU)."""

    bytes: int
    where: str
    cores: int = 0


def memory_here(gpus: Iterable[Gpu], host_bytes: int, cores: int) -> Memory:
    """The largest GPU's memory; without one the machine's."""
    largest = max(gpus, key=lambda gpu: gpu.memory_bytes, default=None)
    if largest is None:
        return Memory(host_bytes, "memory", cores)
    return Memory(largest.memory_bytes, largest.name)


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


def fits_here(family: AudioFamily, memory: Memory) -> str:
    """Whether a model runs here: the precision and the most sessions of memory, or why not."""
    fits = speech_that_fits([family], FitRequest(memory.bytes))
    if not fits:
        return "too large"
    if memory.cores and isinstance(family, SpeechFamily):
        is_slow = frame_on_cpu_ms(family, memory.cores) > CPU_LIMIT_MS
        return "too slow on this CPU" if is_slow else "runs, as INT4"
    if memory.cores:
        return "fits"
    return f"{fits[0].precision}, {sessions_of(fits[0].rows)}"


def frame_on_cpu_ms(family: SpeechFamily, cores: int) -> float:
    """A frame of one session in INT4 on this many cores, computed from the bytes that it reads."""
    rate = SHARE_REACHED * min(cores * CORE_BYTES_PER_S, MACHINE_BYTES_PER_S)
    return 1000 * (family.parameters / 2 + family.codec_bytes) / rate
