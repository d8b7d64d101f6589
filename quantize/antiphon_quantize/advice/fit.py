"""Computes which models fit into the memory of a machine, and with how many sessions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, TypeVar

from antiphon.backends.machine import Gpu
from antiphon.engine.config import EngineConfig
from antiphon.engine.sizing import MemoryFacts, most_rows, slots_on
from antiphon.errors import CheckpointNotFoundError, ConfigError, nearest
from antiphon.models.catalog import builtin_folder
from antiphon.models.costs import CARDS, GpuCard
from antiphon.models.manifest import MANIFEST_NAME, Manifest, read_manifest
from antiphon.models.source import BUILTIN
from antiphon_quantize.advice.families import AudioFamily, SpeechFamily, TextFamily

F = TypeVar("F")

FRAME_MS = 80.0
"""Frame length of every published speech model, in ms."""

TEXT_TOKENS = 8192
"""Number of tokens in a text model's conversation of an hour."""

TEXT_PRECISIONS = ("bf16", "int4")
_UNITS = {
    "b": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *(?:([kmgt]i?)b?|(b))?", re.IGNORECASE)


def card_named(text: str) -> GpuCard | None:
    """The GPU of a name such as ``h100`` or ``rtx4090``; None if its constants are not known."""
    name = text.upper().replace(" ", "")
    return next((card for card in CARDS if card.name.replace(" ", "") == name), None)


def parse_bytes(text: str) -> int:
    """Convert a size such as ``24GB``, ``24 GiB``, ``24g`` or ``512B`` to bytes; GB is 10^9, GiB 2^30.

    Raises:
        ConfigError: the size has another format, or no unit.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        near = nearest(text.upper(), (card.name for card in CARDS))
        raise ConfigError(f"memory {text!r} is no size such as 24GB or 24GiB, and no known GPU; {near}")
    unit = match[2] or match[3]
    if unit is None:
        raise ConfigError(f"memory {text!r} has no unit; for gigabytes write {match[1]}GB")
    return round(float(match[1]) * _UNITS[unit.lower()])


def sessions_of(number: int) -> str:
    """The text for a number of sessions: ``1 session``, ``2 sessions``."""
    return f"{number} session" + ("" if number == 1 else "s")


@dataclass(frozen=True, slots=True)
class FitRequest:
    """The requirements of a recommendation.

    None for ``modality`` or ``language`` means any. ``sessions`` is the number of concurrent sessions.

    If ``card`` is a known GPU, time also limits the sessions.
    """

    memory_bytes: int
    sessions: int = 1
    modality: str | None = None
    language: str | None = None
    is_commercial: bool = False
    card: GpuCard | None = None


@dataclass(frozen=True, slots=True)
class Fit(Generic[F]):
    """A model that fits into the memory in ``precision``.

    ``rows`` is the largest number of rows that leaves the memory reserve free.
    """

    family: F
    precision: str
    facts: MemoryFacts
    rows: int


def speech_facts(family: AudioFamily, precision: str, memory_bytes: int) -> MemoryFacts:
    """The memory that a speech model needs: bytes of the weights with the codec, and bytes per session."""
    weights = family.weight_bytes(precision) + family.codec_bytes
    return MemoryFacts(memory_bytes, weights, family.row_bytes(precision))


def calls_on(card: GpuCard, family: SpeechFamily, precision: str) -> int:
    """The number of calls that ``--slots auto`` computes for a GPU: the smaller of the limits by memory and
    by time.
    """
    by_memory = most_rows(speech_facts(family, precision, round(card.memory_bytes)))
    return min(by_memory, slots_on(card, family.work(precision), family.kind, FRAME_MS, EngineConfig()).slots)


def matches(family: AudioFamily, request: FitRequest) -> bool:
    """Whether a model has the requested kind, language and licence."""
    return (
        request.modality in (None, family.modality)
        and request.language in (None, *family.languages)
        and (family.is_commercial or not request.is_commercial)
    )


def speech_that_fits(families: Iterable[AudioFamily], request: FitRequest) -> list[Fit[AudioFamily]]:
    """Speech models that fit the request, the best first.

    A model without conditions to accept precedes one with conditions; then more parameters, then the higher
    precision come first.

    """
    fits = []
    for family in families:
        for precision in family.precisions:
            facts = speech_facts(family, precision, request.memory_bytes)
            rows = most_rows(facts)
            if request.card is not None and isinstance(family, SpeechFamily):
                rows = calls_on(request.card, family, precision)
            if matches(family, request) and rows >= request.sessions:
                fits.append(Fit(family, precision, facts, rows))
    return sorted(
        fits,
        key=lambda fit: (
            fit.family.is_gated,
            -fit.family.parameters,
            fit.family.precisions.index(fit.precision),
        ),
    )


def reason_against(families: Iterable[AudioFamily], request: FitRequest) -> str:
    """The reason why no speech model fits: the kind, language and licence, the memory, or the time."""
    wanted = [family for family in families if matches(family, request)]
    if not wanted:
        return "no model is of that kind, language and licence"
    by_memory = speech_that_fits(wanted, replace(request, card=None))
    if request.card is None or not by_memory:
        least = min(
            speech_facts(family, precision, request.memory_bytes).needed(request.sessions)
            for family in wanted
            for precision in family.precisions
        )
        free = EngineConfig().memory_reserve_fraction
        return f"memory is the limit: the minimum is {least:,} bytes, and {free:.0%} stays free"
    one = [
        (
            slots_on(request.card, work, it.family.kind, FRAME_MS, EngineConfig()),
            it,
            work.tick_ms(1, request.card),
        )
        for it in by_memory
        if isinstance(it.family, SpeechFamily)
        for work in [it.family.work(it.precision)]
    ]
    found, fit, one_ms = max(one, key=lambda each: (each[0].slots, -each[2]))
    return (
        f"time is the limit: memory holds {sessions_of(fit.rows)} of {fit.family.name} in {fit.precision}, "
        f"of which {found.slots} are in time on {request.card.name}; a tick of 1 session takes "
        f"{one_ms:.1f} ms and may take {found.limit_ms:.0f} ms"
    )


def text_that_fits(families: Iterable[TextFamily], request: FitRequest) -> list[Fit[TextFamily]]:
    """Text models that fit with a full conversation for each session, the largest first."""
    fits = []
    for family in families:
        for precision in TEXT_PRECISIONS:
            row = TEXT_TOKENS * family.kv_bytes_per_token
            facts = MemoryFacts(request.memory_bytes, family.weight_bytes(precision), row)
            rows = most_rows(facts)
            if rows >= request.sessions and (family.is_commercial or not request.is_commercial):
                fits.append(Fit(family, precision, facts, rows))
    return sorted(fits, key=lambda fit: (-fit.family.parameters_b, TEXT_PRECISIONS.index(fit.precision)))


CORE_BYTES_PER_S: Final = 22.3e9
MACHINE_BYTES_PER_S: Final = 90e9
"""Memory rate of a core, measured on two cores (docs/benchmarks/cpu-7b.md), and the highest rate of all cores
together.
"""

SHARE_REACHED: Final = 0.53
"""Share of that rate that INT4 weights reach: moshi-7b takes 173 ms a frame on two cores."""

CPU_LIMIT_MS: Final = 68.0
"""Milliseconds of a frame, 80, less the reserve of slots = auto."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory for a model on this machine: the memory of a GPU (``cores`` is 0) or of the host."""

    bytes: int
    where: str
    cores: int = 0


def memory_here(gpus: Iterable[Gpu], host_bytes: int, cores: int) -> Memory:
    """The memory of the largest GPU, or of the host if there is no GPU."""
    largest = max(gpus, key=lambda gpu: gpu.memory_bytes, default=None)
    if largest is None:
        return Memory(host_bytes, "memory", cores)
    return Memory(largest.memory_bytes, largest.name)


def builtin_manifests() -> list[Manifest]:
    """The manifests of the installed built-in models, in the order of :data:`BUILTIN`."""
    found = []
    for name in BUILTIN:
        try:
            found.append(read_manifest(builtin_folder(name) / MANIFEST_NAME))
        except CheckpointNotFoundError:
            continue
    return found


def hub_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of the Hugging Face client's cache, as its environment variables set it."""
    home = environment.get("HF_HOME")
    cache = Path(environment.get("XDG_CACHE_HOME") or "~/.cache")
    root = Path(home) if home else cache / "huggingface"
    return Path(environment.get("HF_HUB_CACHE") or root / "hub").expanduser()


def cached_repositories(cache: Path) -> dict[str, int]:
    """The repositories in the hub's cache, with their sizes in bytes, including incomplete downloads."""
    found = {}
    for folder in sorted(cache.glob("models--*--*")):
        owner, _, name = folder.name.removeprefix("models--").partition("--")
        blobs = (folder / "blobs").glob("*")
        found[f"{owner}/{name}"] = sum(blob.stat().st_size for blob in blobs if blob.is_file())
    return found


def fits_here(family: AudioFamily, memory: Memory) -> str:
    """Text on whether a model runs here: for a GPU the precision and the most sessions by memory, or the
    reason why not.
    """
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
    """Milliseconds that one session's frame takes with INT4 weights on ``cores`` cores, computed from the
    bytes that the frame reads.
    """
    rate = SHARE_REACHED * min(cores * CORE_BYTES_PER_S, MACHINE_BYTES_PER_S)
    return 1000 * (family.parameters / 2 + family.codec_bytes) / rate
