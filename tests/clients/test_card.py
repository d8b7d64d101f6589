"""The card, the table and the figure contain the numbers of the report."""

from __future__ import annotations

import builtins
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import MissingExtraError
from antiphon_client.card import NOT_TOLD, make_card, render_card
from antiphon_client.facts import ServerFacts, format_bytes
from antiphon_client.plot import load_matplotlib, plot_records
from antiphon_client.progress import ProgressBar
from antiphon_client.record import SessionOutcome
from antiphon_client.report import GeneratorReport, report_probe
from antiphon_client.table import SHOWN_SESSIONS, render_report, report_to_json
from tests.clients.records import NAN, make_record

GENERATOR = GeneratorReport(processes=2, cores=2, cpu_s=1.0, wall_s=10.0, loop_late_ms=None)
FACTS = ServerFacts(
    version="0.1.0",
    model="echo",
    kind="codec",
    parameters=2_600_000,
    format="safetensors",
    quantization="none",
    backend="reference",
    slots=8,
    hardware="AMD EPYC, 2 cores, 23.5 GiB",
    memory={"rss": 512 * 2**20, "weights": 10 * 2**20},
)
REPORT = report_probe([make_record([10.0, 20.0, NAN, 90.0])], GENERATOR)
LOAD = "1 session of 0.3 s, opus"


def test_the_card_holds_what_was_measured_of_what_on_what() -> None:
    text = render_card(make_card(FACTS, REPORT, load=LOAD))
    for words in (
        "echo, codec, 2.6 M parameters, safetensors",
        "antiphon 0.1.0, backend reference, 8 slots",
        "AMD EPYC, 2 cores, 23.5 GiB",
        "p50 20.0 ms, p95 90.0 ms, p99 90.0 ms, max 90.0 ms",
        "rss 512.0 MiB, weights 10.0 MiB",
        "quality",
        "not measured",
        LOAD,
    ):
        assert words in text


def test_what_a_stock_server_does_not_tell_is_said_so() -> None:
    silent = make_card(ServerFacts(), REPORT, load=LOAD)
    assert render_card(silent).count(NOT_TOLD) == 5
    nobody = report_probe([make_record([], outcome=SessionOutcome.REJECTED)], GENERATOR)
    assert "not measured, no frame was answered" in render_card(make_card(FACTS, nobody, load=LOAD))


@pytest.mark.parametrize(
    ("size", "text"), [(512, "512 B"), (1536, "1.5 KiB"), (5 * 2**20, "5.0 MiB"), (3 * 2**30, "3.0 GiB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_the_table_counts_faults_and_shows_the_generators_share() -> None:
    text = render_report(REPORT)
    assert "1 asked, 1 answered, 0 rejected, 0 failed" in text
    assert "1 lost, 1 late, 0 misplaced" in text
    assert "2 processes, 5.0% of 2 cores" in text


def test_many_sessions_are_shown_worst_first() -> None:
    records = [make_record([float(k)], session=k) for k in range(40)]
    records.append(make_record([], session=40, outcome=SessionOutcome.REJECTED))
    text = render_report(report_probe(records, GENERATOR))
    assert f"the {SHOWN_SESSIONS} worst of 41 sessions" in text
    assert "40       rejected: the server is full: 0 of 4 rows are free" in text
    assert "\n39 " in text
    assert "\n10 " not in text


def test_a_table_of_nothing_has_no_percentiles() -> None:
    nobody = report_probe([make_record([], outcome=SessionOutcome.REJECTED)], GENERATOR)
    assert "p95" not in render_report(nobody)
    assert "0        rejected: the server is full" in render_report(nobody)


def test_the_json_is_the_report_with_its_derived_numbers() -> None:
    values = json.loads(json.dumps(report_to_json(REPORT)))
    assert values["counts"]["lost"] == 1
    assert values["times"]["latency"]["p99"] == pytest.approx(90.0)
    assert values["answered_share"] == 0.75
    assert values["generator"]["cpu_share"] == 0.05
    assert values["per_session"][0]["outcome"] == "answered"


def test_the_figure_is_a_png_of_every_frame(tmp_path: Path) -> None:
    path = tmp_path / "latency.png"
    rejected = make_record([], session=1, outcome=SessionOutcome.REJECTED)
    plot_records([make_record([10.0, NAN, 90.0]), rejected], path, title="a probe")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_is_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real_import = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"a plot needs .*pip install .*\[plot\]'"):
        load_matplotlib()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_redraws_in_place_on_a_terminal_and_leaves_nothing() -> None:
    stream = Terminal()
    bar = ProgressBar(stream)
    bar.show(0.5, "8 of 16 frames", now_s=0.0)
    bar.show(0.6, "too soon to draw", now_s=0.05)
    bar.show(1.0, "16 of 16", now_s=1.0)
    bar.clear()
    drawn = stream.getvalue()
    assert "\n" not in drawn
    assert "too soon" not in drawn
    assert " 50%" in drawn
    assert "100%" in drawn
    assert drawn.endswith(" \r")


def test_elsewhere_the_bar_is_a_line_every_few_seconds() -> None:
    stream = io.StringIO()
    bar = ProgressBar(stream)
    for tenth in range(250):
        bar.show(tenth / 250, f"at {tenth / 10} s", now_s=tenth / 10)
    bar.clear()
    assert stream.getvalue() == "  0%  at 0.0 s\n 40%  at 10.0 s\n 80%  at 20.0 s\n"


def test_a_quiet_bar_says_nothing() -> None:
    stream = io.StringIO()
    ProgressBar(stream, is_quiet=True).show(0.5, "half", now_s=0.0)
    assert stream.getvalue() == ""
