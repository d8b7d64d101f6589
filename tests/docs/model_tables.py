"""The tables of models and hardware in the docs, computed as by ``antiphon models``.

python -m tests.docs.model_tables      writes them into docs/models.md and README.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.engine.config import EngineConfig
from antiphon.engine.sizing import slots_on
from antiphon.engine.tick_times import tick_limit_s
from antiphon.models.costs import CARDS, GpuCard
from antiphon_quantize.advice.families import SpeechFamily, load_families
from antiphon_quantize.advice.fit import calls_on, speech_facts
from antiphon_quantize.advice.show import count

ROOT = Path(__file__).parents[2]
FRAME_S = 0.08
PAGES = (ROOT / "docs" / "models.md", ROOT / "README.md")
PRECISIONS = ("bf16", "int8")


def calls(family: SpeechFamily, card: GpuCard) -> str:
    """The calls of ``--slots auto``, in bfloat16 and in INT8, as ``4 / 17``; a dash where there are none."""
    return " / ".join(str(calls_on(card, family, precision) or "-") for precision in PRECISIONS)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def models_table() -> str:
    """Every published speech model: what it is, and its sizes."""
    head = (
        "model",
        "does",
        "languages",
        "licence",
        "parameters",
        "weights bf16 / int8",
        "a session bf16 / int8",
    )
    rows = [
        (
            f"`hf://{family.repository}`" + (" (gated)" if family.is_gated else ""),
            family.modality,
            ", ".join(family.languages),
            family.licence,
            count(family.parameters),
            " / ".join(f"{family.weight_bytes(it) / 1e9:.1f}" for it in PRECISIONS) + " GB",
            " / ".join(f"{family.row_bytes(it) / 1e6:.0f}" for it in PRECISIONS) + " MB",
        )
        for family in load_families().speech
    ]
    return markdown(head, rows)


def hardware_table() -> str:
    """The calls of each model by GPU."""
    rows = [(it.name, *(calls(it, card) for card in reversed(CARDS))) for it in load_families().speech]
    return markdown(("model", *(card.name for card in reversed(CARDS))), rows)


def moshi_table() -> str:
    """What Moshi 7B is computed to do on each GPU: calls, and a tick of one call at full context."""
    moshi = load_families().speech[0]
    limit_ms = 1000 * tick_limit_s(0.08, reserve_fraction=EngineConfig().tick_reserve_fraction)
    step = f"a step for one call, INT8 (limit {limit_ms:.0f} ms)"
    head = ("Moshi 7B on", "memory", "calls in bf16", "calls in INT8", step)
    rows = [
        (
            card.name,
            f"{card.memory_bytes / 1e9:.0f} GB",
            *calls(moshi, card).split(" / "),
            f"{moshi.work('int8').tick_ms(1, card):.0f} ms",
        )
        for card in reversed(CARDS)
    ]
    return markdown(head, rows)


CALL_MINUTES = (1, 4, 10)
DEVIATIONS = 4.0
"""Of the pages in use above their mean, for which there is room: short once in some 30,000 looks."""


@dataclass(frozen=True, slots=True)
class GrownCalls:
    """Calls of one mean length, at any moment: mean and standard deviation of their pages.

    Lengths are exponential, so the calls of a moment are as old as they have yet to live.
    """

    pages: float
    deviation: float

    @classmethod
    def of(cls, minutes: float, context: int) -> GrownCalls:
        """Of so many minutes in the mean, and a window of ``context`` frames."""
        page = PAGE_SLOTS * FRAME_S / (60 * minutes)  # in mean lengths
        numbers = np.arange(-(-context // PAGE_SLOTS))
        reached = np.exp(-numbers * page)  # the share of calls that have begun each page
        pages, squares = reached.sum(), ((2 * numbers + 1) * reached).sum()
        return cls(float(pages), float(squares - pages**2) ** 0.5)


def overcommitted(family: SpeechFamily, card: GpuCard, minutes: float) -> str:
    """The calls in INT8 with ``overcommit``, and its number, as ``127 (1.5)``; a dash for none."""
    plain, config = calls_on(card, family, "int8"), EngineConfig()
    if not plain:
        return "-"
    grown, most = GrownCalls.of(minutes, family.context), -(-family.context // PAGE_SLOTS)
    facts = speech_facts(family, "int8", round(card.memory_bytes))
    page_bytes = family.kv_bytes("int8") / most
    left = card.memory_bytes * (1 - config.memory_reserve_fraction) - facts.fixed_bytes
    # Nothing keeps calls young: were all old at once, their steps would still be in time.
    in_time = slots_on(card, family.work("int8"), family.kind, 1000 * FRAME_S, config).slots

    def needed(calls: int) -> float:
        pages = calls * grown.pages + DEVIATIONS * grown.deviation * math.sqrt(calls)
        return calls * (facts.row_bytes - family.kv_bytes("int8")) + pages * page_bytes

    found = max((calls for calls in range(plain, in_time + 1) if needed(calls) <= left), default=plain)
    factor = most * page_bytes * found / (left - found * (facts.row_bytes - family.kv_bytes("int8")))
    return f"{found} ({max(1.0, factor):.1f})"


def overcommit_table() -> str:
    """Calls of Moshi 7B that take pages as they grow, by their mean length and GPU."""
    moshi, cards = load_families().speech[0], tuple(reversed(CARDS))
    rows = [
        ("whole windows", *(str(calls_on(card, moshi, "int8") or "-") for card in cards)),
        *(
            (f"{minutes} min", *(overcommitted(moshi, card, minutes) for card in cards))
            for minutes in CALL_MINUTES
        ),
    ]
    return markdown(("calls of", *(card.name for card in cards)), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "models": models_table,
    "overcommit": overcommit_table,
    "hardware": hardware_table,
    "moshi": moshi_table,
}


def with_tables(page: str) -> str:
    """The page with its tables as the code has them."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: python -m tests.docs.model_tables -->\n", f"<!-- end of {name} -->\n"
        head, found, rest = page.partition(begin)
        if found:
            page = f"{head}{begin}{table()}\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_tables(path.read_text()))
