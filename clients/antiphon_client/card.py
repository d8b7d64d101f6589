"""The benchmark card: workload, server, machine and results in a dozen comparable lines."""

from __future__ import annotations

from typing import Any

from antiphon_client.facts import ServerFacts, format_bytes
from antiphon_client.report import ProbeReport

NOT_TOLD = "not stated by the server"
NOT_MEASURED = "not measured"


def make_card(facts: ServerFacts, report: ProbeReport, *, load: str) -> dict[str, Any]:
    """The benchmark card of a report as plain values for JSON; ``load`` describes the sessions as text."""
    latency = report.times.latency
    return {
        "model": {
            "name": facts.model,
            "kind": facts.kind,
            "parameters": facts.parameters,
            "format": facts.format,
        },
        "quantization": facts.quantization,
        "server": {
            "version": facts.version,
            "backend": facts.backend,
            "device": facts.device,
            "dtype": facts.dtype,
            "slots": facts.slots,
            "versions": dict(facts.versions),
        },
        "hardware": facts.hardware,
        "load": load,
        "latency_ms": None
        if latency is None
        else {name: round(getattr(latency, name), 2) for name in ("p50", "p95", "p99", "max")},
        "throughput": {
            "frames_per_s": round(report.frames_per_s, 2),
            "realtime_factor": round(report.realtime_factor, 3),
        },
        "memory_bytes": dict(facts.memory),
        "quality": NOT_MEASURED,
    }


def render_card(card: dict[str, Any]) -> str:
    """A benchmark card as aligned text."""
    model, server = card["model"], card["server"]
    rows = {
        "model": _join(
            model["name"], model["kind"], _count(model["parameters"], "parameters"), model["format"]
        ),
        "quantization": card["quantization"] or NOT_TOLD,
        "server": _join(
            server["version"] and f"antiphon {server['version']}",
            server["backend"] and f"backend {server['backend']}",
            server["device"],
            server["dtype"],
            server["slots"] and f"{server['slots']} slots",
        ),
        "hardware": card["hardware"] or NOT_TOLD,
        "load": card["load"],
        "latency": "not measured, no frame was answered"
        if card["latency_ms"] is None
        else "p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms, max {max:.1f} ms".format(
            **card["latency_ms"]
        ),
        "throughput": "{realtime_factor:.2f} s of audio a second, {frames_per_s:.1f} frames/s".format(
            **card["throughput"]
        ),
        "memory": _join(*(f"{name} {format_bytes(size)}" for name, size in card["memory_bytes"].items())),
        "quality": card["quality"],
    }
    width = max(map(len, rows)) + 2
    return "\n".join(["Benchmark card", *(f"  {name:<{width}}{text}" for name, text in rows.items())])


def _count(number: int | None, what: str) -> str | None:
    if number is None:
        return None
    for size, letter in ((10**9, "G"), (10**6, "M")):
        if number >= size:
            return f"{number / size:.1f} {letter} {what}"
    return f"{number} {what}"


def _join(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part) or NOT_TOLD
