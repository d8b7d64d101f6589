"""The tables of models and hardware in the docs, from the arithmetic of ``antiphon models``.

python -m tests.docs.model_tables      writes them into docs/models.md
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antiphon_quantize.advice.families import AudioFamily, load_families
from antiphon_quantize.advice.fit import most_rows, parse_bytes, speech_facts
from antiphon_quantize.advice.show import count

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
MEMORIES = ("16GB", "24GB", "48GB", "80GB", "141GB")
PRECISIONS = ("bf16", "int8")


def sessions(family: AudioFamily, memory: str) -> str:
    """The most sessions that memory holds, in bfloat16 and in INT8, as ``2 / 14``; a dash where none fits."""
    size = parse_bytes(memory)
    rows = [most_rows(speech_facts(family, precision, size)) for precision in PRECISIONS]
    return " / ".join(str(number) if number else "-" for number in rows)


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
    """The most sessions of each model by memory."""
    rows = [(it.name, *(sessions(it, memory) for memory in MEMORIES)) for it in load_families().speech]
    return markdown(("model", *(f"{memory[:-2]} GB" for memory in MEMORIES)), rows)


def with_tables(page: str) -> str:
    """The page with its tables as the code has them."""
    for name, table in (("models", models_table()), ("hardware", hardware_table())):
        begin, end = f"<!-- {name}: python -m tests.docs.model_tables -->\n", f"<!-- end of {name} -->\n"
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}\n{table}\n\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
