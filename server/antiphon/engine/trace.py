"""Records some ticks, stage by stage, in the Chrome trace event format.

Open it in https://ui.perfetto.dev or chrome://tracing. Format: "Trace Event Format" (Google, 2016),
complete events (``ph`` X, times in microseconds) and thread names (``ph`` M).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

SPANS_PER_TICK = 4096
"""Spans per requested tick: a few from the engine, and several per session from serve."""

MAX_SPANS = 1_000_000
"""Maximum number of spans for any number of ticks: some hundred megabytes."""


class Span(NamedTuple):
    """A span of time on a named track."""

    name: str
    track: str
    start_s: float
    end_s: float
    details: dict[str, Any]


class Tracer:
    """Collects spans for the first ``ticks`` ticks; may be used from any thread.

    Spans beyond a limit are counted and not kept. All times use one clock.
    """

    def __init__(self, ticks: int) -> None:
        """Start recording; without requested ticks nothing is recorded."""
        self._ticks_left = ticks
        self._room = min(MAX_SPANS, max(ticks, 1) * SPANS_PER_TICK)
        self._spans: list[Span] = []
        self._left_out = 0
        self._done = threading.Event()
        self._lock = threading.Lock()
        if ticks <= 0:
            self._done.set()

    @property
    def is_open(self) -> bool:
        """Whether spans are being recorded."""
        return not self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until all ticks are recorded; return false if the time is over first."""
        return self._done.wait(timeout_s)

    def span(self, name: str, start_s: float, end_s: float, *, track: str, **details: Any) -> None:
        """Record that ``name`` ran from ``start_s`` to ``end_s``; ``details`` must fit into JSON."""
        if self._done.is_set():
            return
        with self._lock:
            if len(self._spans) < self._room:
                self._spans.append(Span(name, track, start_s, end_s, details))
            else:
                self._left_out += 1

    def stages(self, start_s: float, stage_ms: Mapping[str, float]) -> None:
        """Record the stages of a backend one after the other: their durations are known, their starts are
        not.
        """
        for stage, milliseconds in stage_ms.items():
            end_s = start_s + milliseconds / 1000.0
            self.span(stage, start_s, end_s, track="backend")
            start_s = end_s

    def end_tick(self) -> None:
        """Count a tick; the last one closes the recording."""
        with self._lock:
            self._ticks_left -= 1
            if self._ticks_left <= 0:
                self._done.set()

    def to_json(self, *, is_relative: bool = True) -> str:
        """The recording so far. Times count from the first span, or from the clock's zero if not
        ``is_relative``.
        """
        with self._lock:
            spans, left_out = list(self._spans), self._left_out
        tracks = {
            track: number for number, track in enumerate(dict.fromkeys(span.track for span in spans), start=1)
        }
        zero_s = min((span.start_s for span in spans), default=0.0) if is_relative else 0.0
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": track}}
            for track, number in tracks.items()
        ]
        events += [
            {
                "ph": "X",
                "name": span.name,
                "pid": 1,
                "tid": tracks[span.track],
                "ts": round(1e6 * (span.start_s - zero_s), 1),
                "dur": round(1e6 * (span.end_s - span.start_s), 1),
                "args": span.details,
            }
            for span in spans
        ]
        return json.dumps(
            {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"left_out": left_out}}
        )

    def save(self, path: Path) -> None:
        """Write the recording to a file."""
        path.write_text(self.to_json(), encoding="utf-8")
