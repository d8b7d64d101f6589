"""A trace is valid JSON in Chrome's format, has every stage, and ends automatically."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine import trace as trace_module
from antiphon.engine.trace import Tracer
from tests.engine.bench import Bench
from tests.engine.fakes import FakeBackend, FakeClock


def events_of(tracer: Tracer, kind: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(tracer.to_json())["traceEvents"] if event["ph"] == kind]


def test_every_stage_of_every_tick_is_there_in_microseconds(tmp_path: Path) -> None:
    clock = FakeClock()
    tracer = Tracer(ticks=2)
    bench = Bench(FakeBackend(clock=clock, step_s=lambda rows: 0.020), clock=clock, tracer=tracer)
    session = bench.submit()
    bench.push(session, 1, 2, 3)
    bench.tick()
    assert tracer.is_open
    tracer.span("send", clock() - 0.001, clock(), track="serve", session=session.id)
    bench.tick()
    assert not tracer.is_open
    assert tracer.wait(0)
    bench.tick()  # not recorded any more
    spans = events_of(tracer, "X")
    tracks = {event["args"]["name"]: event["tid"] for event in events_of(tracer, "M")}
    by_track = {
        track: [span["name"] for span in spans if span["tid"] == number] for track, number in tracks.items()
    }
    assert by_track == {
        "engine": ["gather", "step", "scatter"] * 2,
        "backend": ["fake", "rest"] * 2,
        "serve": ["send"],
    }
    steps = [span for span in spans if span["name"] == "step"]
    assert [span["dur"] for span in steps] == [20_000, 20_000]
    assert steps[0]["args"] == {"rows": 1, "physical": 1}
    first, rest = (next(span for span in spans if span["name"] == name) for name in ("fake", "rest"))
    assert first["ts"] == steps[0]["ts"] == 0
    assert rest["ts"] == first["ts"] + first["dur"] == 500
    tracer.save(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["displayTimeUnit"] == "ms"


def test_a_trace_of_no_ticks_records_nothing() -> None:
    tracer = Tracer(0)
    tracer.span("send", 0.0, 1.0, track="serve")
    assert not tracer.is_open
    assert events_of(tracer, "X") == []


def test_room_is_bounded_and_what_was_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MAX_SPANS", 10)
    tracer = Tracer(1)
    for index in range(25):
        tracer.span("x", index, index + 1, track="t")
    assert len(events_of(tracer, "X")) == 10
    assert json.loads(tracer.to_json())["otherData"] == {"left_out": 15}


def test_spans_of_many_threads_are_all_there() -> None:
    tracer = Tracer(1)

    def work(number: int) -> None:
        for index in range(200):
            tracer.span(f"{number}", index, index + 0.5, track=f"thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [span["name"] for span in events_of(tracer, "X")]
    assert {name: names.count(name) for name in set(names)} == {str(number): 200 for number in range(4)}
