"""Traces of ticks: the exported spans, their parents, and their attributes."""

from __future__ import annotations

import json
import sys
import threading

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from antiphon.engine.trace import Tracer
from antiphon.errors import ConfigError, MissingExtraError
from antiphon.serve.hosting.options import parse_command_line
from antiphon.serve.operator.otel import MAX_FOLLOWING, OtelTracer, make_tracer, trace_of


def traced(every: int) -> tuple[OtelTracer, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    return OtelTracer(every, exporter, clock=lambda: 100.0, wall_ns=lambda: 5_000_000_000_000), exporter


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def tick(tracer: OtelTracer, start_s: float) -> None:
    tracer.span("gather", start_s, start_s + 0.001, track="engine", sessions=2)
    tracer.span("step", start_s + 0.001, start_s + 0.021, track="engine", rows=2, bucket=2)
    tracer.span("encode", start_s + 0.001, start_s + 0.011, track="backend")
    tracer.end_tick()
    tracer.span("send", start_s + 0.03, start_s + 0.031, track="loop", frames=1, session="ab")


def test_a_tick_is_a_trace_down_to_the_socket() -> None:
    tracer, exporter = traced(every=3)
    for number in range(7):
        tick(tracer, 100 + number)
    tracer.close()
    spans = exporter.get_finished_spans()
    roots = [span for span in spans if span.parent is None]
    assert [(span.attributes or {})["antiphon.tick"] for span in roots] == [0, 3, 6]
    first = [span for span in spans if span.context.trace_id == roots[0].context.trace_id]
    by_name = {span.name: span for span in first}
    assert sorted(by_name) == ["encode", "gather", "send", "step", "tick"]
    assert parent_of(by_name["encode"]) == by_name["step"].context.span_id
    for name in ("gather", "step", "send"):
        assert parent_of(by_name[name]) == roots[0].context.span_id
    assert (roots[0].start_time, roots[0].end_time) == (5_000_000_000_000, 5_000_021_000_000)
    assert by_name["send"].attributes == {
        "antiphon.frames": 1,
        "antiphon.session": "ab",
        "thread.name": "loop",
    }


def test_what_follows_a_tick_is_bounded() -> None:
    tracer, exporter = traced(every=1)
    tick(tracer, 100)
    for _ in range(2 * MAX_FOLLOWING):
        tracer.span("send", 101, 101.1, track="loop")
    tracer.close()
    assert sum(span.name == "send" for span in exporter.get_finished_spans()) <= MAX_FOLLOWING


def test_the_option_makes_one_and_not_beside_a_chrome_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_tracer(parse_command_line([])) is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    tracer = make_tracer(parse_command_line(["--otel-every", "50"]))
    assert isinstance(tracer, OtelTracer)
    assert tracer.is_open
    tracer.close()
    with pytest.raises(ConfigError, match="trace = 5 and otel_every = 50: use one of them"):
        make_tracer(parse_command_line(["--otel-every", "50", "--trace", "5"]))


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[otel\]'"):
        OtelTracer(1, InMemorySpanExporter())


async def test_a_recording_is_encoded_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer, encode = Tracer(1), Tracer.to_json

    def to_json(self: Tracer, *, is_relative: bool) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return encode(self, is_relative=is_relative)

    monkeypatch.setattr(Tracer, "to_json", to_json)
    assert json.loads((await trace_of(tracer)).data)["traceEvents"] == []
    assert (await trace_of(None)).data == b""
