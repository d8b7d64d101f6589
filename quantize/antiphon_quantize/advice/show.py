"""The output of ``antiphon models``: the list, and a recommendation with its arithmetic."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path

from antiphon.backends.registry import BACKENDS
from antiphon.engine.computed import slots_on
from antiphon.engine.config import EngineConfig
from antiphon.models.cards import CARDS
from antiphon.models.manifest import Manifest
from antiphon_quantize.advice.families import ModelFamilies, PocketFamily, SpeechFamily
from antiphon_quantize.advice.fit import OVERHEAD, Fit, FitRequest, TextFit
from antiphon_quantize.advice.here import Memory, sessions_here

FRAME_MS = 80.0
"""Of every published speech model."""

GATED = "  the hub asks you to accept its conditions first, and for HF_TOKEN when it is loaded"


def gigabytes(size: float) -> str:
    """Bytes as GB, which are 10^9, or as MB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def count(parameters: int) -> str:
    """Parameters as B, which are 10^9, or as M."""
    return f"{parameters / 1e9:.2f} B" if parameters >= 5e8 else f"{parameters / 1e6:.1f} M"


def backends_of(family: SpeechFamily) -> list[str]:
    """The backends of this version that run a model of this kind of the Moshi family."""
    entries = {name: entry for name, entry in BACKENDS.items() if entry.family is None and name != "null"}
    return [name for name, entry in entries.items() if family.kind in entry.kinds]


def sessions_of(number: int) -> str:
    """A number of sessions, ``1 session`` or ``2 sessions``."""
    return f"{number} session" + ("" if number == 1 else "s")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


KINDS = {"mimi": "codec", "moshi": "duplex", "stt": "stt", "tts": "tts"}
"""What a family of checkpoints does, as the modalities are called."""


def builtin_table(manifests: Iterable[Manifest]) -> str:
    """The models of the package, each with its own description."""
    head = ("built in", "does", "licence", "parameters", "files", "what it is")
    rows = [
        (
            manifest.name,
            KINDS.get(manifest.family, manifest.family),
            manifest.license,
            count(manifest.parameters or 0),
            gigabytes(sum(entry.bytes for entry in manifest.files.values())),
            manifest.description,
        )
        for manifest in manifests
    ]
    return table([head, *rows])


def cache_lines(cached: Mapping[str, int], cache: Path) -> str:
    """What the hub's cache holds."""
    if not cached:
        return f"in the hub's cache ({cache}): nothing; a model is fetched when it is first served"
    lines = [f"  hf://{repository}  {gigabytes(size)}" for repository, size in cached.items()]
    return "\n".join([f"in the hub's cache ({cache}):", *lines])


FRESH_DAYS = 183
"""Half a year; models, licences and languages of older tables may have changed."""


def families_age(read_on: date, today: date) -> str:
    """The day of the table, with a warning when it is over six months old."""
    days = (today - read_on).days
    dated = f"published models as of {read_on.isoformat()}"
    if days <= FRESH_DAYS:
        return dated
    return (
        f"{dated}\nwarning: this table is {days} days old, over six months: read the licences on the owners' "
        "cards, and update antiphon for a newer table"
    )


def families_table(families: ModelFamilies, memory: Memory, cached: Container[str]) -> str:
    """Every family with what one has to know before choosing."""
    fits = f"fits {gigabytes(memory.bytes)}"
    head = (
        *("model", "does", "languages", "licence", "parameters", "bf16 / int8", "a session"),
        *(fits, "cached", "backends"),
    )
    speech = [
        (
            family.name,
            family.modality,
            " ".join(family.languages),
            family.licence + ("" if family.is_commercial else " (not commercial)"),
            count(family.parameters),
            f"{family.weight_bytes('bf16') / 1e9:.1f} / {family.weight_bytes('int8') / 1e9:.1f} GB",
            f"{family.row_bytes('bf16') / 1e6:.0f} / {family.row_bytes('int8') / 1e6:.0f} MB",
            sessions_here(family, memory),
            "yes" if family.repository in cached else "no",
            " ".join(backends_of(family)) or "none yet",
        )
        for family in families.speech
    ]
    text_head = ("text model, for a cascade", "licence", "parameters", "bf16 / int4", "1000 tokens")
    text = [
        (
            family.name,
            family.licence,
            f"{family.parameters_b:.1f} B"
            + (f" ({family.active_b:.1f} B active)" if family.active_b < family.parameters_b else ""),
            f"{family.weight_bytes('bf16') / 1e9:.1f} / {family.weight_bytes('int4') / 1e9:.1f} GB",
            f"{family.kv_bytes_per_token / 1e3:.0f} MB",
        )
        for family in families.text
    ]
    pocket_head = (
        "Pocket-TTS, on a CPU",
        "languages",
        "licence",
        "parameters",
        "for voices",
        "float32",
        "a session",
        fits,
        "pocket://",
    )
    pocket = [
        (
            family.name,
            " ".join(family.languages),
            family.licence + ("" if family.is_commercial else " (not commercial)"),
            count(family.parameters),
            count(family.encoder_parameters),
            f"{(family.weight_bytes('float32') + family.codec_bytes) / 1e6:.0f} MB",
            f"{family.row_bytes('float32') / 1e6:.0f} MB",
            sessions_here(family, memory),
            " ".join(name for names in family.configs.values() for name in names),
        )
        for family in families.pocket
    ]
    room = f"{memory.where} of {gigabytes(memory.bytes)}"
    where = f"fits: the precision and the most sessions in {room}; time may allow fewer"
    return "\n\n".join(
        (table([head, *speech]), table([pocket_head, *pocket]), where, table([text_head, *text]))
    )


def speech_advice(fit: Fit, request: FitRequest, others: Iterable[Fit]) -> str:
    """The recommendation, term by term."""
    family, facts = fit.family, fit.facts
    kv = family.kv_bytes(fit.precision)
    weights = facts.weights_bytes - family.codec_bytes
    together = facts.needed(request.sessions)
    lines = [
        f"{family.name} in {fit.precision}, {sessions_of(request.sessions)}, "
        f"in {gigabytes(request.memory_bytes)}",
        f"  {family.model(request.language)}, {', '.join(family.languages_of_model(request.language))}, "
        f"{family.licence}",
        *([GATED] if family.is_gated else []),
        f"  weights    {gigabytes(weights)}   {count(family.parameters)} parameters",
        f"  codec      {gigabytes(family.codec_bytes)}   {family.codec}",
        f"  sessions   {gigabytes(request.sessions * facts.row_bytes)}   {request.sessions} x "
        f"({kv / 1e6:.0f} MB keys and values + {(facts.row_bytes - kv) / 1e6:.0f} MB codec)",
        *_sum(together, request.memory_bytes, fit.rows),
        *([] if isinstance(family, PocketFamily) else time_lines(family, fit, request.sessions)),
        "  --slots auto measures how many are answered in time",
    ]
    also = [f"{other.family.name} {other.precision} ({sessions_of(other.rows)})" for other in others]
    return "\n".join(lines + ([f"also: {', '.join(also)}"] if also else []))


def time_lines(family: SpeechFamily, fit: Fit, sessions: int) -> list[str]:
    """Of each card whose constants are known: a tick's milliseconds, and the sessions that are in time."""
    work, lines = family.work(fit.precision), list[str]()
    for card in CARDS:
        found = slots_on(card, work, family.kind, FRAME_MS, EngineConfig())
        lines.append(
            f"  on {card.name:<8}{work.tick_ms(sessions, card):.1f} ms   a tick of {sessions_of(sessions)} "
            f"at full context; time would hold {sessions_of(found.slots)} ({card.label})"
        )
    return lines


def text_advice(fit: TextFit, request: FitRequest, others: Iterable[TextFit]) -> str:
    """The recommendation of a text model."""
    lines = [
        f"{fit.family.name} in {fit.precision}, {sessions_of(request.sessions)}, "
        f"in {gigabytes(request.memory_bytes)}",
        f"  {fit.family.repository}, {fit.family.licence}",
        f"  weights    {gigabytes(fit.facts.weights_bytes)}   {fit.family.parameters_b} B parameters",
        f"  sessions   {gigabytes(request.sessions * fit.facts.row_bytes)}   {request.sessions} x "
        f"{fit.facts.row_bytes / 1e6:.0f} MB keys and values",
        *_sum(fit.facts.needed(request.sessions), request.memory_bytes, fit.rows),
        "  memory is half of the answer: the text model's own server says how many are answered in time",
    ]
    also = [f"{other.family.name} {other.precision} ({sessions_of(other.rows)})" for other in others]
    return "\n".join(lines + ([f"also: {', '.join(also)}"] if also else []))


def _sum(together: int, memory_bytes: int, rows: int) -> list[str]:
    return [
        f"  overhead   {gigabytes(OVERHEAD * together)}   {OVERHEAD:.0%}: activations, framework",
        f"  needed     {gigabytes((1 + OVERHEAD) * together)}   of {gigabytes(memory_bytes)}; memory would "
        f"hold {sessions_of(rows)}",
    ]
