"""docs/metrics.md has every metric, and a scrape has the names, types and helps of the table."""

from __future__ import annotations

import re

from antiphon.engine.admission import AdmissionOutcome
from antiphon.metrics import METRICS, PREFIX, Merge, MetricType, merge_of
from tests.repo.tracked import ROOT
from tests.serve.harness import serving
from tests.support.null_models import CODEC

ELSEWHERE = {
    *("front_ends", "front_end_connections", "front_end_lag_seconds", "front_end_restarts"),
    "turned_away_connections",
    *(name for name in METRICS if name.startswith(("agent_", "ring_pages"))),
}
"""Of an agent, a supervisor, the sockets that it or the command listens on, and rows that share pages."""


SUFFIX = {MetricType.COUNTER: "_total", MetricType.HISTOGRAM: "_bucket", MetricType.GAUGE: ""}


def line(name: str) -> str:
    row = METRICS[name]
    *others, last = (f"`{label}`" for label in row.labels) if row.labels else ("",)
    values = f" ({', '.join(row.values)})" if row.values else ""
    cells = (f"`{PREFIX}{name}{SUFFIX[row.type]}`", ", ".join((*others, last)) + values, row.help)
    return f"| {' | '.join(cells)} |"


def test_the_reference_has_every_metric() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert [row for row in text.splitlines() if row.startswith("| `")] == [line(name) for name in METRICS]
    of_all = "`, `".join(f"{PREFIX}{name}" for name, row in METRICS.items() if row.merge is Merge.LARGEST)
    assert f"the largest value of the processes instead: `{of_all}`." in " ".join(text.split())


async def test_a_server_exposes_every_metric_as_the_table_says() -> None:
    async with serving(also=[("next", CODEC)], canary="next", canary_share=1.0) as server:
        _, text, _ = await server.get("/metrics")
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    types = dict(re.findall(r"^# TYPE (\S+) (.+)$", text, re.MULTILINE))
    for name in METRICS.keys() - ELSEWHERE:
        row = METRICS[name]
        exposed = f"{PREFIX}{name}{'_total' if row.type is MetricType.COUNTER else ''}"
        assert (helps[exposed], types[exposed]) == (row.help, row.type)
    ours = {name for name in helps if name.startswith(PREFIX) and not name.endswith("_created")}
    assert {name.removeprefix(PREFIX).removesuffix("_total") for name in ours} == METRICS.keys() - ELSEWHERE


def test_admission_counts_every_outcome() -> None:
    assert METRICS["admissions"].values == tuple(AdmissionOutcome)


def test_processes_join_a_sample_as_its_row_says() -> None:
    merges = {merge: merge.joined(3, 4) for merge in Merge}
    assert merges == {Merge.SUM: 7, Merge.LARGEST: 4, Merge.EARLIEST: 3}
    assert merge_of("antiphon_late_frames_total") is Merge.SUM
    assert merge_of("antiphon_late_frames_created") is Merge.EARLIEST
    assert merge_of("antiphon_loop_lag_seconds") is Merge.LARGEST
    assert (merge_of("process_start_time_seconds"), merge_of("process_max_fds")) == ("earliest", "largest")
