"""``antiphon models``: the installed models, the published models, and those that fit a machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from antiphon.backends.machine import host_bytes, list_gpus
from antiphon.cores import usable_cores
from antiphon.errors import ConfigError
from antiphon.install import antiphon_command
from antiphon.models.spec import PipelineKind
from antiphon.option import Parser
from antiphon_quantize.advice.families import TRANSLATION, AudioFamily, ModelFamilies, load_families
from antiphon_quantize.advice.fit import (
    Fit,
    FitRequest,
    builtin_manifests,
    cached_repositories,
    card_named,
    hub_cache,
    memory_here,
    parse_bytes,
    reason_against,
    sessions_of,
    speech_that_fits,
    text_that_fits,
)
from antiphon_quantize.advice.show import (
    builtin_table,
    cache_lines,
    families_age,
    families_table,
    speech_advice,
    text_advice,
)

SERVICES = {
    PipelineKind.DUPLEX: ("duplex", "duplex-gpu"),
    PipelineKind.STT: ("stt", "stt-gpu"),
    PipelineKind.TTS: ("tts", "tts-gpu"),
}
"""The services of compose.yaml by the kind of their model; the service of each kind that runs on a CPU has
the kind's name.
"""

RESUMABLE = (
    "--worker=auto",
    "--hand-over-port=8997",
    "--hand-over-secret=/run/secrets/hand-over.pem",
)
"""Options of a worker whose calls can continue at another one: compose.yaml mounts the secret."""

ON_GPU = ["--device=cuda"]
ON_CPU = ["--backend-option=onnx.spin=false"]
"""Options of a worker by its device. Workers share CPU cores, so threads of ONNX Runtime sleep while they
wait.
"""

CPU_IMAGE = (
    "    image: ${ANTIPHON_TORCH_IMAGE:-antiphon:cpu-torch}",
    '    build: {"args": {"EXTRAS": "torch,pocket,quantize,otel"}}',
)
"""The image that runs published models on a CPU: compose.yaml uses the one without torch for duplex."""


def compose_override(fit: Fit[AudioFamily], request: FitRequest, gpus: int = 1) -> str:
    """The content of a ``compose.override.yaml`` that serves a recommended model on ``gpus`` GPUs.

    Compose reads a file named compose.override.yaml automatically. Each GPU has its own service with the
    requested number of sessions. Lists are JSON, which is valid YAML.
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
    if fit.family.backend == "torch":
        kept = "int8" if fit.precision == "int8" else "compute"
        command += [f"--backend-option=torch.weights={kept}", f"--backend-option=torch.kv={kept}"]
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
        started = f"    command: {json.dumps(command + (ON_GPU if on_gpu else ON_CPU))}"
        lines += [f"  {service}:", started, *(() if on_gpu else CPU_IMAGE)]
        for number in range(1, gpus if on_gpu else 1):
            lines += [
                f"  {service}-{number}:",
                f'    extends: {{"file": "compose.yaml", "service": "{service}"}}',
                f'    environment: {{"CUDA_VISIBLE_DEVICES": "{number}"}}',
                started,
            ]
    return "\n".join(lines) + "\n"


EXAMPLES = """\
examples:
  antiphon models                                  all models, and those that fit on this machine
  antiphon models --fits 24GB --modality duplex --license commercial --sessions 8
  antiphon models --fits H100 --modality duplex --sessions 40 --compose compose.override.yaml
  antiphon models --fits H100 --modality duplex --sessions 40 --gpus 8 --compose compose.override.yaml
  antiphon models --fits 16GB --modality text                      a text model for a voice agent
"""

MODALITIES = ("duplex", TRANSLATION, "stt", "tts", "text")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line of ``antiphon models``."""
    parser = Parser(
        prog="antiphon models",
        description="List built-in, cached and published models, with licences and sizes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--fits", metavar="MEMORY", help="recommend a model that fits: 24GB, 80GiB, H100")
    parser.add_argument("--sessions", type=int, default=1, metavar="N", help="sessions at once [1]")
    parser.add_argument("--modality", choices=MODALITIES, help="kind of model")
    parser.add_argument("--language", metavar="CODE", help="required language: en, fr")
    parser.add_argument(
        "--license", "--licence", choices=("any", "commercial"), default="any", help="the required licence"
    )
    parser.add_argument(
        "--compose",
        metavar="FILE",
        help="write the recommendation as an override of compose.yaml; '-' prints it",
    )
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs that --compose uses [1]")
    return parser


def main(argv: Sequence[str], today: Callable[[], date] = date.today) -> int:
    """Run the command line; return 1 if no model fits the request, else 0.

    ``today`` is compared with the date of the table of published models, for a warning after six months.

    Raises:
        ConfigError: an invalid option.
    """
    options = build_parser().parse_args(list(argv))
    families = load_families()
    if options.sessions < 1:
        raise ConfigError(f"sessions is {options.sessions}, at least 1 is needed")
    if options.gpus < 1:
        raise ConfigError(f"gpus is {options.gpus}, at least 1 is needed")
    if options.fits is None:
        if options.compose is not None:
            raise ConfigError("compose is given without fits, the memory of the machine")
        print(_overview(families, today()))  # noqa: T201
        return 0
    card = card_named(options.fits)
    request = FitRequest(
        parse_bytes(options.fits) if card is None else round(card.memory_bytes),
        options.sessions,
        options.modality,
        options.language,
        options.license == "commercial",
        card,
    )
    if options.modality == "text":
        if options.language is not None:
            raise ConfigError("language is for speech models; no text model's languages are listed")
        if options.compose is not None:
            raise ConfigError("compose.yaml takes a text model by its variable LLM_MODEL, not by an override")
        texts = text_that_fits(families.text, request)
        if not texts:
            return _nothing(request, "memory is the limit")
        print(text_advice(texts[0], request, texts[1:6]))  # noqa: T201
        return 0
    fits = speech_that_fits(families.audio, request)
    if not fits:
        return _nothing(request, reason_against(families.audio, request))
    if options.compose is not None:
        override = compose_override(fits[0], request, options.gpus)
        if options.compose == "-":
            print(override, end="")  # noqa: T201
            return 0
        try:
            with Path(options.compose).open("x", encoding="utf-8") as file:  # never overwrites a file
                file.write(override)
        except OSError as error:
            raise ConfigError(f"cannot write {options.compose}: {error.strerror}") from error
    print(speech_advice(fits[0], request, fits[1:6]))  # noqa: T201
    return 0


def _overview(families: ModelFamilies, today: date) -> str:
    """The lists of built-in, cached and published models, with those that fit."""
    cache = hub_cache()
    cached = cached_repositories(cache)
    memory = memory_here(list_gpus(), host_bytes(), usable_cores())
    return "\n\n".join(
        (
            builtin_table(builtin_manifests()),
            cache_lines(cached, cache),
            families_age(families.read_on, today),
            families_table(families, memory, cached),
        )
    )


def _nothing(request: FitRequest, reason: str) -> int:
    asked = f"{sessions_of(request.sessions)} in {request.memory_bytes:,} bytes"
    print(f"nothing fits: {asked}; {reason}; see '{antiphon_command('models')}'", file=sys.stderr)  # noqa: T201
    return 1
