"""Some faults of the matrix in short calls; the assertions are about counts, not times."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench import fault_matrix
from lab.bench.fault_matrix import BEGIN, END, Row, run_fault, table, write
from lab.bench.fault_rows import FAULTS
from lab.bench.fault_talker import Fate

CALLS, SECONDS = 4, 6.0


async def row_of(name: str, folder: Path) -> Row:
    row = await run_fault(FAULTS[name], folder, calls=CALLS, seconds=SECONDS, is_calm=True)
    assert len(row.fates) == CALLS
    assert not row.total("foreign"), row.line()
    return row


@pytest.mark.parametrize(("name", "resumed"), [("signal_reconnect", CALLS), ("front_end_killed", CALLS // 2)])
async def test_calls_go_on_and_none_hears_another(name: str, resumed: int, tmp_path: Path) -> None:
    row = await row_of(name, tmp_path)
    assert sum(fate.resumed > 0 for fate in row.fates) == resumed, row.line()
    assert not [fate.ended for fate in row.fates if fate.ended], row.line()


async def test_samples_that_are_no_numbers_end_their_call_alone(tmp_path: Path) -> None:
    row = await row_of("backend_nan", tmp_path)
    (ended,) = [fate.ended for fate in row.fates if fate.ended]
    assert ended.startswith("1011 "), ended


async def test_a_disk_that_is_full_ends_recordings_and_no_call(tmp_path: Path) -> None:
    row = await row_of("disk_full", tmp_path)
    assert not [fate.ended for fate in row.fates if fate.ended], row.line()
    assert row.facts == (f"{2 * CALLS} recordings given up",)


def test_the_table_says_how_it_was_made_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fates = (Fate(75, 70, 3, 0, 1, 120.4, ""), Fate(75, 30, 0, 0, 0, 9.6, "1011 gone"))
    text = table([Row(FAULTS["quiet"], fates, None, ("a|b",))], ["`x`, which needs y"], "the command")
    line = "| `quiet` | nothing | 50 | 3 | 120, 120 | 1 | 1: 1011 | never |"
    assert text.splitlines()[0] == "`the command`: 2 calls with 150 frames together for each fault."
    assert text.splitlines()[-3:] == [line, "", "Not run there: `x`, which needs y."]
    document = tmp_path / "reliability.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(fault_matrix, "DOCUMENT", document)
    write(text)
    assert document.read_text() == f"before\n{BEGIN}\n\n{text}\n\n{END}\nafter\n"
