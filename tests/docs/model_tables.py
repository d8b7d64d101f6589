"""The tables of models and hardware in the docs, from the arithmetic of ``antiphon models``.

python -m tests.docs.model_tables      writes them into docs/models.md and README.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from antiphon.engine.config import EngineConfig
from antiphon.engine.sizing import tick_limit_s
from antiphon.models.costs import CARDS, GpuCard
from antiphon_quantize.advice.families import SpeechFamily, load_families
from antiphon_quantize.advice.fit import calls_on
from antiphon_quantize.advice.show import count

ROOT = Path(__file__).parents[2]
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


TABLES: Mapping[str, Callable[[], str]] = {
    "models": models_table,
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
