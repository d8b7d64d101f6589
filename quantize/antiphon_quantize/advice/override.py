"""A recommendation as an override of compose.yaml."""

from __future__ import annotations

import json

from antiphon.models.spec import PipelineKind
from antiphon_quantize.advice.fit import Fit, FitRequest, sessions_of

SERVICES = {
    PipelineKind.DUPLEX: ("duplex", "duplex-gpu"),
    PipelineKind.STT: ("stt", "stt-gpu"),
    PipelineKind.TTS: ("tts", "tts-gpu"),
}
"""The services of compose.yaml by the kind of their model; the first has its name, and runs on a CPU."""

RESUMABLE = (
    "--worker=auto",
    "--hand-over-port=8997",
    "--hand-over-secret=/run/secrets/hand-over.pem",
)
"""Options of a worker whose calls can continue at another one: compose.yaml mounts the secret."""

ON_GPU = ["--device=cuda"]
ON_CPU = ["--backend-option=onnx.spin=false"]
"""Options of a worker by where it runs: workers share CPU cores, so threads of ONNX Runtime sleep."""

CPU_IMAGE = (
    "    image: ${ANTIPHON_TORCH_IMAGE:-antiphon:cpu-torch}",
    '    build: {"args": {"EXTRAS": "torch,pocket,quantize,otel"}}',
)
"""The image that runs published models on a CPU: compose.yaml gives duplex the one without torch."""


def compose_override(fit: Fit, request: FitRequest) -> str:
    """A file that ``docker compose`` reads after compose.yaml (compose.override.yaml automatically).

    Lists are written as JSON, which YAML is a superset of.
    """
    kind = fit.family.kind
    model = fit.family.model(request.language)
    command = [
        "--host=0.0.0.0",
        "--port=8998",
        "--free-rows-port=8999",
        *(RESUMABLE if kind is PipelineKind.DUPLEX else ()),
        "--trusted-proxy=${ANTIPHON_INSIDE:-172.30.77.0/24}",
        f"--model={model}",
        f"--backend={fit.family.backend}",
        f"--slots={request.sessions}",
    ]
    if fit.precision == "int8":
        command += ["--backend-option=weights=int8", "--backend-option=kv=int8"]
    lines = [
        f"# {fit.family.name} in {fit.precision} for {sessions_of(request.sessions)}; "
        "by antiphon models --fits.",
        "services:",
        "  balancer:",
        "    environment:",
        f"      {kind.upper()}_MODEL: {json.dumps(model)}",
    ]
    for service in SERVICES[kind][: 1 if fit.family.backend == "pocket" else None]:
        on_gpu = service.endswith("-gpu")
        lines += [f"  {service}:", f"    command: {json.dumps(command + (ON_GPU if on_gpu else ON_CPU))}"]
        lines += [] if on_gpu else CPU_IMAGE
    return "\n".join(lines) + "\n"
