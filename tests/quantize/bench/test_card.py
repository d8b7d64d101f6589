"""The card as JSON, Markdown and picture: it round-trips, is complete and is valid."""

from __future__ import annotations

import re
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon_quantize.bench.card import Card, card_to_json
from antiphon_quantize.bench.output import (
    DPI,
    SIZE_INCHES,
    SUFFIXES,
    can_draw,
    draw,
    free_place,
    is_busy,
    quality_points,
    render,
    write_card,
)
from tests.quantize.bench.fakes import made_card, read_card

FIELDS = ("Model", "Hardware", "Backend", "Quantization", "Versions", "Command", "Memory", "Quality")


def test_json_reads_back_as_the_same_card(tmp_path: Path) -> None:
    card = made_card()
    path = tmp_path / "card.json"
    path.write_text(card_to_json(card))
    assert read_card(path) == card
    assert card_to_json(read_card(path)) == path.read_text()


def test_the_page_has_every_field_of_every_model() -> None:
    page = render(made_card(), "card.png")
    parts = page.split("\n## ")
    assert [part.partition("\n")[0] for part in parts[1:]] == ["Side by side", "plain", "small"]
    for part in parts[2:]:
        for field in FIELDS:
            assert f"\n| {field} | " in part, field
        assert "| echo (codec), 2,861,521 parameters, " in part
        assert "threads 2 |" in part
        assert "| method none, calibration none |" in part
        assert "| `antiphon bench --model ./plain` |" in part
        assert "peak RSS of its process 150.0 MB, weights 2.50 GB, state of a row 1.0 kB" in part
    plain, small = parts[2:]
    assert (
        "| 4 | 40.00 (40.00 to 40.00) | 40.00 | 40.00 | 40.00 | 0 of 30 | 100.0 (100.0 to 100.0) |" in plain
    )
    assert "| 1 | 5.00 (5.00 to 5.00) | 50.00 | 50.00 | 50.00 | 3 of 30 |" in small
    assert "| 2.00 (2.00 to 2.00) |" in small
    assert "leaves for two: **3**." in plain
    assert "| this is the baseline |" in plain
    assert "**gate failed** against plain; text tokens chosen as by the baseline: 0.9375" in small
    assert "| text nll | 1.5 | 1.625 | 0.125 | <= 0.1 | FAIL |" in small
    assert "| codec pesq loss |  |  |  |  | not measured: no module |" in small
    assert page.endswith("![quality against speed, tick times, memory](card.png)\n")
    assert "![" not in render(made_card())


def test_every_row_of_a_table_has_its_columns() -> None:
    for table in render(made_card()).split("\n\n"):
        if table.startswith("|"):
            assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_a_busy_machine_is_said() -> None:
    card = made_card()
    cores = card.entries[0].facts.hardware.count
    assert not is_busy(card)
    assert "use ratios" not in render(card)
    assert "use ratios, not milliseconds" in render(replace(card, load_average=0.31 * cores))


def test_the_figure_is_a_picture_of_its_size(tmp_path: Path) -> None:
    for name, card in {"both": made_card(), "one": without_quality(made_card())}.items():
        path = tmp_path / f"{name}.png"
        draw(card, path)
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert struct.unpack(">II", data[16:24]) == tuple(round(DPI * side) for side in SIZE_INCHES)
        assert 10_000 < len(data) < 500_000


def without_quality(card: Card) -> Card:
    return replace(card, baseline=None, entries=tuple(replace(entry, quality=None) for entry in card.entries))


def test_the_baseline_agrees_with_itself() -> None:
    card = made_card()
    assert quality_points(card) == ("text tokens chosen as by the baseline", {"small": 0.9375, "plain": 1.0})
    assert quality_points(without_quality(card)) == ("", {})


def test_a_card_is_written_once(tmp_path: Path) -> None:
    out = tmp_path / "new" / "card"
    assert free_place(out) == out
    paths = write_card(made_card(), out, has_figure=True)
    assert paths == [tmp_path / "new" / f"card{suffix}" for suffix in SUFFIXES]
    assert paths[0].read_text() == render(made_card(), "card.png")
    for suffix in SUFFIXES:
        lone = tmp_path / suffix[1:] / "card-1.5"  # what stands behind a dot is part of the name
        lone.parent.mkdir()
        lone.with_name(f"card-1.5{suffix}").touch()
        assert free_place(lone) == lone.with_name("card-1.5-2")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write .*card\.json"):
        write_card(made_card(), tmp_path / "file" / "card", has_figure=False)


def test_without_matplotlib_there_is_no_picture_and_the_reason_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert can_draw()
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not can_draw()
    assert re.fullmatch(r"no picture: .* pip install .*\[plot\]'?\n", capsys.readouterr().err)
