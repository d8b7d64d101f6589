"""One Chrome trace of what several processes have recorded, all on the same clock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def join_traces(recorded: Mapping[str, bytes]) -> str:
    """The recordings of processes by name, each as the engine's tracer writes it with the clock's times."""
    events: list[dict[str, Any]] = []
    left_out = 0
    for number, (name, data) in enumerate(recorded.items(), start=1):
        trace = json.loads(data)
        left_out += trace["otherData"]["left_out"]
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        events += [{**event, "pid": number} for event in trace["traceEvents"]]
    zero_us = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] = round(event["ts"] - zero_us, 1)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"left_out": left_out}})
