"""A recommendation as an override of compose.yaml."""

from __future__ import annotations

import json

from antiphon.advise.fit import Fit
from antiphon.models.spec import PipelineKind

SERVICES = {
    PipelineKind.DUPLEX: ("duplex", "duplex-gpu"),
    PipelineKind.STT: ("stt", "stt-gpu"),
    PipelineKind.TTS: ("tts", "tts-gpu"),
}
"""The services of compose.yaml by the kind of their model; the first has its name."""


def compose_override(fit: Fit, sessions: int) -> str:
    """A file that ``docker compose`` reads after compose.yaml (compose.override.yaml by itself).

    Lists are written as JSON, which YAML is a superset of.
    """
    kind = fit.family.kind
    model = f"hf://{fit.family.repository}"
    command = [
        "--host=0.0.0.0",
        "--port=8998",
        "--agent-port=8999",
        "--trusted-proxy=${ANTIPHON_INSIDE:-172.30.77.0/24}",
        f"--model={model}",
        "--backend=torch",
        f"--slots={sessions}",
    ]
    if fit.precision == "int8":
        command += ["--backend-option=weights=int8", "--backend-option=kv=int8"]
    lines = [
        f"# {fit.family.name} in {fit.precision} for {sessions} sessions; by antiphon models --fits.",
        "services:",
        "  door:",
        "    environment:",
        f"      {kind.upper()}_MODEL: {json.dumps(model)}",
    ]
    for service in SERVICES[kind]:
        device = ["--device=cuda"] if service.endswith("-gpu") else []
        lines += [f"  {service}:", f"    command: {json.dumps(command + device)}"]
    return "\n".join(lines) + "\n"
