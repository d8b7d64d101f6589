"""Options that the commands of this package share: models, device, measurement and quality."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from antiphon.backends.registry import options_of, resolve_auto
from antiphon.config import MODEL_HELP, ModelConfig, load_config, load_file
from antiphon.errors import AntiphonError, ConfigError, MissingExtraError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.source import BUILTIN, DEFAULT_MODEL
from antiphon.option import AUTO
from antiphon_quantize.bench.card import Quality, TickPlan, not_judged, quality_from_json, read_quality
from antiphon_quantize.bench.subject import Subject
from antiphon_quantize.gate import judge, limits_of
from antiphon_quantize.gate_limits import to_json
from antiphon_quantize.gate_run import Material, Side


def run_gate(
    candidate: Subject, baseline: Subject, *, questions: Path | None, tell: Callable[[str], None]
) -> Quality:
    """The gate's verdict on ``candidate`` compared with ``baseline``, by the limits of the candidate's
    recipe.

    Raises:
        MissingExtraError: a package that the gate needs is not installed.
        AntiphonError: the two cannot be compared, or cannot be run.
    """
    try:
        one, other = (
            Side(load_checkpoint(side.model), side.backend, dict(side.options))
            for side in (baseline, candidate)
        )
        material = Material(questions=questions, device=candidate.device)
        limits = limits_of(other.checkpoint, other.backend)
        verdict = to_json(judge(one, other, limits, material, tell))
    except ImportError as error:
        module = error.name or str(error)
        raise MissingExtraError("the quality gate", extra="quantize", module=module) from error
    return quality_from_json(verdict, baseline.label, "the gate's verdict")


class QualitySource:
    """The source of quality measurements: files of ``antiphon gate``, or the gate itself, which runs on
    request.
    """

    def __init__(
        self,
        baseline: Subject | None,
        subjects: Sequence[Subject],
        files: Sequence[str],
        gate: Callable[[Subject, Subject], Quality],
    ) -> None:
        """Read the files, which are in the order of the subjects that are not the baseline.

        Raises:
            ConfigError: files are given without a baseline, in the wrong number, or in another format.
        """
        self._baseline, self._gate = baseline, gate
        self._judged = {subject.label: subject for subject in subjects if subject is not baseline}
        if files and baseline is None:
            raise ConfigError("quality is given without baseline, the model that it was compared with")
        if files and len(files) != len(self._judged):
            raise ConfigError(
                f"{len(files)} files of quality for {len(self._judged)} models that are not the baseline"
            )
        name = "" if baseline is None else baseline.label
        pairs = zip(self._judged, files, strict=False)  # of equal length, or there are no files
        self._read = {label: read_quality(Path(file), name) for label, file in pairs}

    def quality(self, label: str) -> Quality | None:
        """The quality of a model; None without a baseline."""
        if self._baseline is None:
            return None
        if label in self._read:
            return self._read[label]
        try:
            return self._gate(self._judged[label], self._baseline)
        except (AntiphonError, MemoryError, RuntimeError) as error:
            # The other measurements must not be lost. Torch reports a lack of memory by the last of these.
            return not_judged(self._baseline.label, str(error) or type(error).__name__)


def add_models_options(parser: argparse.ArgumentParser) -> None:
    """Add options for one or several models, and for their backend."""
    parser.add_argument("--model", action="append", help=f"{MODEL_HELP}; repeat for several")
    parser.add_argument(
        "--config", metavar="FILE.toml", help="file of models, as for antiphon serve --config"
    )
    add_backend_options(parser)


def add_backend_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a backend, named as in ``antiphon serve``."""
    parser.add_argument("--backend", default=AUTO, help=f"backend [{AUTO}]")
    parser.add_argument("--device", help="device, such as cpu, cuda, cuda:1")
    parser.add_argument(
        "--backend-option", action="append", default=[], metavar="NAME=VALUE", help="an option of the backend"
    )


def add_quality_options(parser: argparse.ArgumentParser, *, baseline: str) -> None:
    """Add the options of the gate; ``baseline`` is the help text of ``--baseline``."""
    parser.add_argument("--baseline", metavar="MODEL", help=baseline)
    parser.add_argument(
        "--questions", type=Path, metavar="FOLDER", help="spoken questions for the gate, see antiphon gate"
    )


def one_entry(options: argparse.Namespace) -> ModelConfig:
    """The one model of ``options.model``, with the options of :func:`add_backend_options`."""
    return ModelConfig(
        model=options.model,
        backend=options.backend,
        device=options.device,
        backend_option=tuple(options.backend_option),
    )


def chosen_entries(options: argparse.Namespace) -> tuple[ModelConfig, ...]:
    """The models that the options of :func:`add_models_options` request.

    Raises:
        ConfigError: both a file and models are given, or the file has no models.
    """
    common = {
        "backend": options.backend,
        "device": options.device,
        "backend_option": tuple(options.backend_option),
    }
    if options.config is None:
        return tuple(ModelConfig(model=ref, **common) for ref in options.model or [DEFAULT_MODEL])
    if options.model:
        raise ConfigError("model and config are both given; write the models into the file")
    given = {name: value for name, value in common.items() if value not in (AUTO, None, ())}
    return load_config(load_file(options.config), given).served


def make_subjects(entries: Sequence[ModelConfig]) -> list[Subject]:
    """The subjects of a measurement, with unique labels: a model's name, and its backend where necessary.

    Raises:
        ConfigError: two models have the same name, or an option is not NAME=VALUE. AntiphonError: a model is
        missing, or no installed backend runs it.
    """
    subjects: dict[str, Subject] = {}
    checkpoints = [load_checkpoint(entry.model) for entry in entries]
    names = [
        entry.name or checkpoint.spec.name for entry, checkpoint in zip(entries, checkpoints, strict=True)
    ]
    for entry, checkpoint, name in zip(entries, checkpoints, names, strict=True):
        backend = resolve_auto(checkpoint) if entry.backend == AUTO else entry.backend
        label = name if names.count(name) == 1 else f"{name} on {backend}"
        if label in subjects:
            raise ConfigError(f"two models are called '{label}'; give them names in a file, see --config")
        chosen = options_of(backend, entry.backend_option)
        subjects[label] = Subject(label, portable_ref(entry.model), backend, entry.device, chosen)
    return list(subjects.values())


def add_plan_options(parser: argparse.ArgumentParser, *, seconds: float, rows: str) -> None:
    """Add the options of the measurement plan; ``seconds`` and ``rows`` are defaults."""
    parser.add_argument("--rows", default=rows, metavar="N,N", help=f"numbers of rows, ascending [{rows}]")
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"length of a round in s [{seconds:g}]"
    )
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="rounds for each model [3]")
    parser.add_argument(
        "--lead-frames",
        type=int,
        default=25,
        metavar="N",
        help="warm-up frames of each round, not counted [25]",
    )


def plan_of(options: argparse.Namespace) -> TickPlan:
    """The measurement plan of the options. Raises ConfigError if the rows are not numbers."""
    return TickPlan(parse_rows(options.rows), options.seconds, options.turns, options.lead_frames)


def parse_rows(text: str) -> tuple[int, ...]:
    """Read a list of numbers such as ``1,2,4``. Raises ConfigError for anything else."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"rows = '{text}' is no list of numbers such as 1,2,4") from error


def portable_ref(model: str) -> str:
    """A model's reference that is valid from any folder."""
    is_path = model not in BUILTIN and "://" not in model
    return str(Path(model).expanduser().resolve()) if is_path else model
