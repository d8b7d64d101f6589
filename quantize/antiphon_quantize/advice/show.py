"""The output of ``antiphon models``: the list, and a recommendation with its arithmetic."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final, TypeAlias

from antiphon.engine.config import EngineConfig
from antiphon.engine.sizing import most_rows, slots_on
from antiphon.install import antiphon_command
from antiphon.models.costs import CARDS, COMPUTED
from antiphon.models.manifest import Manifest
from antiphon_quantize.advice.families import (
    AudioFamily,
    ModelFamilies,
    PocketFamily,
    SpeechFamily,
    TextFamily,
)
from antiphon_quantize.advice.fit import (
    FRAME_MS,
    Fit,
    FitRequest,
    Memory,
    fits_here,
    sessions_of,
)

GATED = "gated: accept its licence on Hugging Face first, and set HF_TOKEN"

INT8: Final = "--backend-option weights=int8 --backend-option kv=int8"
Row: TypeAlias = Sequence[str]
INDENT: Final = "    "


def gigabytes(size: float) -> str:
    """A size in bytes as text, in GB (10^9) or MB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def count(parameters: int) -> str:
    """A number of parameters as text, in B (10^9) or M."""
    return f"{parameters / 1e9:.2f} B" if parameters >= 5e8 else f"{parameters / 1e6:.1f} M"


def table(rows: Sequence[Row]) -> str:
    """A text table with columns as wide as their content."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


KINDS = {"mimi": "codec", "moshi": "duplex", "stt": "stt", "tts": "tts"}
"""The modalities of a family of checkpoints."""


def builtin_table(manifests: Sequence[Manifest]) -> str:
    """A text table of the package's models, each with its description and the command that serves it."""
    head = ("built in", "does", "parameters", "files")
    rows = [
        (
            manifest.name,
            KINDS.get(manifest.family, manifest.family),
            count(manifest.parameters or 0),
            gigabytes(sum(entry.bytes for entry in manifest.files.values())),
        )
        for manifest in manifests
    ]
    notes = [
        [f"{manifest.description} {manifest.license}.", antiphon_command(f"serve --model {manifest.name}")]
        for manifest in manifests
    ]
    return with_notes(head, rows, notes)


def with_notes(head: Row, rows: Sequence[Row], notes: Iterable[Sequence[str]]) -> str:
    """A table with notes below each row, wrapped at 80 columns unless they are commands."""
    command = antiphon_command("")
    title, *lines = table([head, *rows]).splitlines()
    found = [title]
    for line, below in zip(lines, notes, strict=True):
        found.append(line)
        for note in below:
            width = len(INDENT + note) if note.startswith(command) else 80
            found += textwrap.wrap(
                note, width, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False
            )
    return "\n".join(found)


def cache_lines(cached: Mapping[str, int], cache: Path) -> str:
    """Text that lists the models in the hub's cache, with their sizes."""
    if not cached:
        return f"in the hub's cache ({cache}): nothing;\na model is fetched when it is first served"
    lines = [f"  hf://{repository}  {gigabytes(size)}" for repository, size in cached.items()]
    return "\n".join([f"in the hub's cache ({cache}):", *lines])


FRESH_DAYS = 183
"""Half a year; models, licences and languages of older tables may have changed."""


def families_age(read_on: date, today: date) -> str:
    """Text with the date of the table of published models, and a warning if it is over six months old."""
    days = (today - read_on).days
    dated = f"published models as of {read_on.isoformat()}"
    if days <= FRESH_DAYS:
        return dated
    return (
        f"{dated}\nwarning: this table is {days} days old, over six months: read the licences on the owners' "
        "cards, and update antiphon for a newer table"
    )


def families_table(families: ModelFamilies, memory: Memory, cached: Container[str]) -> str:
    """A text table of every family with its licence, size and languages, and the command that serves it."""
    head = ("model", "does", "parameters", "bf16 / int8", "here")
    speech = [
        (
            family.name,
            family.modality,
            count(family.parameters),
            f"{family.weight_bytes('bf16') / 1e9:.1f} / {family.weight_bytes('int8') / 1e9:.1f} GB",
            fits_here(family, memory),
        )
        for family in families.speech
    ]
    speech_notes = [
        [
            licence_of(family) + (", cached" if family.repository in cached else ""),
            *([GATED] if family.is_gated else []),
            antiphon_command(f"serve --model {family.model()}"),
        ]
        for family in families.speech
    ]
    pocket_head = ("Pocket-TTS, on a CPU", "parameters", "float32", "a session", "here")
    pocket = [
        (
            family.name,
            count(family.parameters),
            f"{(family.weight_bytes('float32') + family.codec_bytes) / 1e6:.0f} MB",
            f"{family.row_bytes('float32') / 1e6:.0f} MB",
            fits_here(family, memory),
        )
        for family in families.pocket
    ]
    pocket_notes = []
    for family in families.pocket:
        first, *others = (name for names in family.configs.values() for name in names)
        also = [f"or {' '.join(others)}"] if others else []
        pocket_notes.append([licence_of(family), antiphon_command(f"serve --model pocket://{first}"), *also])
    text_head = ("text model, for an agent", "licence", "parameters", "bf16 / int4")
    text = [
        (
            family.name,
            family.licence,
            f"{family.parameters_b:.1f} B"
            + (f" ({family.active_b:.1f} B active)" if family.active_b < family.parameters_b else ""),
            f"{family.weight_bytes('bf16') / 1e9:.1f} / {family.weight_bytes('int4') / 1e9:.1f} GB",
        )
        for family in families.text
    ]
    room = f"{memory.where} of {gigabytes(memory.bytes)}"
    where = (
        f"here: computed, with {memory.cores} core{'s' * (memory.cores > 1)} and {room}; INT4 is made by:\n"
        f"{INDENT}{antiphon_command('quantize --target onnx --recipe int4 --model MODEL OUT')}"
        if memory.cores
        else f"here: the precision and the most sessions in {room}; time may allow fewer"
    )
    return "\n\n".join(
        (
            with_notes(head, speech, speech_notes),
            with_notes(pocket_head, pocket, pocket_notes),
            "\n".join(graphs_of("MODEL")),
            where,
            table([text_head, *text]),
        )
    )


def licence_of(family: AudioFamily) -> str:
    """The languages and the licence of a model, as text."""
    return f"{' '.join(family.languages)}; {family.licence}" + (
        "" if family.is_commercial else " (not commercial)"
    )


def speech_advice(fit: Fit[AudioFamily], request: FitRequest, others: Iterable[Fit[AudioFamily]]) -> str:
    """The recommendation of a speech model as text, with each term of its memory and time."""
    family, facts = fit.family, fit.facts
    kv = family.kv_bytes(fit.precision)
    weights = facts.weights_bytes - family.codec_bytes
    together = facts.needed(request.sessions)
    row_mb, kv_mb = facts.row_bytes / 1e6, kv / 1e6
    per_session = f"{request.sessions} x ({kv_mb:.0f} MB keys and values + {row_mb - kv_mb:.0f} MB codec)"
    lines = [
        f"{family.name} in {fit.precision}, {sessions_of(request.sessions)}, "
        f"in {gigabytes(request.memory_bytes)}",
        f"{INDENT}{' '.join(family.languages_of_model(request.language))}; {family.licence}",
        *([f"{INDENT}{GATED}"] if family.is_gated else []),
        f"{INDENT}{antiphon_command(f'serve --model {family.model(request.language)}')}"
        + (f" \\\n{INDENT}  {INT8}" if fit.precision == "int8" else ""),
        table(
            [
                ("  weights", gigabytes(weights), f"{count(family.parameters)} parameters"),
                ("  codec", gigabytes(family.codec_bytes), family.codec),
                ("  sessions", gigabytes(request.sessions * facts.row_bytes), per_session),
                *_sum(together, request.memory_bytes, most_rows(facts)),
            ]
        ),
        *(
            graphs_of(family.model(request.language))
            if isinstance(family, PocketFamily)
            else time_lines(family, fit, request)
        ),
        "--slots auto measures how many are answered in time",
    ]
    also = [
        f"{other.family.name} {other.precision} ({sessions_of(other.rows)}"
        + (", gated)" if other.family.is_gated else ")")
        for other in others
    ]
    return "\n".join([*lines, *_also(also)])


def graphs_of(model: str) -> tuple[str, str]:
    """Two lines of text: a reason to make INT8 graphs of a Pocket-TTS model, and the command."""
    return (
        "Pocket-TTS is about three times as fast as INT8 graphs, which are made once:",
        f"{INDENT}{antiphon_command(f'quantize --target onnx --model {model} ./pocket-onnx')}",
    )


def time_lines(family: SpeechFamily, fit: Fit[AudioFamily], request: FitRequest) -> list[str]:
    """For the requested GPU, or for each known GPU: the time of a tick in milliseconds, and the number of
    sessions that are answered in time.
    """
    known = CARDS if request.card is None else (request.card,)
    sessions, work, rows = request.sessions, family.work(fit.precision), list[Row]()
    for each in (it for it in known if it.memory_bytes >= fit.facts.needed(sessions)):
        found = slots_on(each, work, family.kind, FRAME_MS, EngineConfig())
        in_time = (
            f"time would hold {sessions_of(found.slots)}"
            if found.slots
            else f"too slow for one call, whose ticks may take {found.limit_ms:.0f} ms"
        )
        label = "" if each.label == COMPUTED else f" ({each.label})"
        rows.append((f"  {each.name}", f"{work.tick_ms(sessions, each):.1f} ms", in_time + label))
    if not rows:
        return []
    return [f"a tick of {sessions_of(sessions)} at full context ({COMPUTED}):", table(rows)]


def text_advice(fit: Fit[TextFamily], request: FitRequest, others: Iterable[Fit[TextFamily]]) -> str:
    """The recommendation of a text model, as text."""
    kept = f"{request.sessions} x {fit.facts.row_bytes / 1e6:.0f} MB keys and values"
    lines = [
        f"{fit.family.name} in {fit.precision}, {sessions_of(request.sessions)}, "
        f"in {gigabytes(request.memory_bytes)}",
        f"{INDENT}{fit.family.repository}; {fit.family.licence}",
        table(
            [
                ("  weights", gigabytes(fit.facts.weights_bytes), f"{fit.family.parameters_b} B parameters"),
                ("  sessions", gigabytes(request.sessions * fit.facts.row_bytes), kept),
                *_sum(fit.facts.needed(request.sessions), request.memory_bytes, fit.rows),
            ]
        ),
        "memory is half of the answer: the text model's server limits how many are\nanswered in time",
    ]
    also = [f"{other.family.name} {other.precision} ({sessions_of(other.rows)})" for other in others]
    return "\n".join([*lines, *_also(also)])


def _also(others: Sequence[str]) -> list[str]:
    if not others:
        return []
    return textwrap.wrap(f"also: {', '.join(others)}", 80, subsequent_indent=INDENT, break_on_hyphens=False)


def _sum(together: int, memory_bytes: int, rows: int) -> list[Row]:
    free = EngineConfig().memory_reserve_fraction
    held = f"of {gigabytes(memory_bytes)}; memory would hold {sessions_of(rows)}"
    return [
        (
            "  kept free",
            gigabytes(free * memory_bytes),
            f"{free:.0%}, as --slots auto: framework, graphs",
        ),
        ("  needed", gigabytes(together + free * memory_bytes), held),
    ]
