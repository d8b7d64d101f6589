"""What the quality gate says of a model, as a card shows it; the one place here that knows the gate.

The gate (``antiphon_quantize``) stands above this package, so it is looked up by name when it is asked, as
the command line looks up its commands. What it writes with ``--json`` is read the same way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import AntiphonError, ConfigError, MissingExtraError
from antiphon.measure.plain import NOT_FINITE
from antiphon.models.catalog import load_checkpoint

if TYPE_CHECKING:
    from antiphon.measure.subject import Subject

PREFERRED: Final[Mapping[str, str]] = {
    "answers loss": "questions answered rightly",
    "text agreement": "text tokens chosen as by the baseline",
    "codec stoi loss": "STOI of the codec",
    "codec codes": "codes equal to the baseline's",
}
"""Measures of the gate that may stand for quality as a whole, the best first, and what they are called."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure of the gate. ``baseline`` and ``candidate`` are the two numbers that ``value``, a difference
    or a ratio, is made of; None where it compares the two by itself. ``value`` None: not measured.
    ``limit`` and ``verdict`` are in words."""

    name: str
    value: float | None
    baseline: float | None
    candidate: float | None
    limit: str
    verdict: str
    detail: str

    @property
    def score(self) -> float | None:
        """The model's own number: the candidate's where there are two, else the comparison itself."""
        return self.value if self.candidate is None else self.candidate


@dataclass(frozen=True, slots=True)
class Quality:
    """A model held against ``baseline``, on ``material``. ``note``: why it could not be judged, if so."""

    baseline: str
    is_passed: bool | None
    material: str
    metrics: tuple[Metric, ...]
    note: str

    @property
    def headline(self) -> Metric | None:
        """The first of :data:`PREFERRED` that was measured."""
        known = {metric.name: metric for metric in self.metrics if metric.score is not None}
        return next((known[name] for name in PREFERRED if name in known), None)


def not_judged(baseline: str, why: str) -> Quality:
    """A quality that is not known."""
    return Quality(baseline, None, "", (), why)


def quality_from_json(values: Any, baseline: str, where: str) -> Quality:
    """The quality that ``antiphon gate --json`` wrote; ``where`` names it in messages.

    Raises:
        ConfigError: no gate wrote this.
    """
    try:
        metrics = tuple(_metric(row) for row in values["measures"])
        return Quality(baseline, bool(values["passed"]), str(values["material"]), metrics, "")
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{where} is not what antiphon gate --json writes: {error!r}") from error


def _metric(row: Mapping[str, Any]) -> Metric:
    limit = row["limit"] or {}
    bounds = {">=": _number(limit.get("least")), "<=": _number(limit.get("most"))}
    return Metric(
        name=str(row["measure"]),
        value=_number(row["value"]),
        baseline=_number(row["baseline"]),
        candidate=_number(row["candidate"]),
        limit=" ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None),
        verdict=str(row["verdict"]),
        detail=str(row["detail"]),
    )


def _number(value: Any) -> float | None:
    if value is not None and value not in NOT_FINITE and not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return None if value is None else float(value)


def read_quality(path: Path, baseline: str) -> Quality:
    """Read a file that ``antiphon gate --json`` wrote. Raises ConfigError when it cannot be."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    return quality_from_json(values, baseline, str(path))


def run_gate(
    candidate: Subject, baseline: Subject, *, questions: Path | None, tell: Callable[[str], None]
) -> Quality:
    """Let the gate judge a model beside another, by the limits of the candidate's own recipe.

    Raises:
        MissingExtraError: what the gate needs is not installed.
        AntiphonError: the two cannot be compared, or cannot be run.
    """
    try:
        gate = import_module("antiphon_quantize.gate")
        runs = import_module("antiphon_quantize.gate_run")
        report = import_module("antiphon_quantize.gate_report")
        one, other = (
            runs.Side(load_checkpoint(side.model), side.backend, dict(side.options))
            for side in (baseline, candidate)
        )
        material = runs.Material(questions=questions, device=candidate.device)
        limits = gate.limits_of(other.checkpoint, other.backend)
        verdict = report.to_json(gate.judge(one, other, limits, material, tell))
    except ImportError as error:
        module = error.name or str(error)
        raise MissingExtraError("the quality gate", extra="quantize", module=module) from error
    return quality_from_json(verdict, baseline.label, "the gate's verdict")


class QualitySource:
    """Where quality comes from: files that ``antiphon gate`` wrote, or the gate itself, run when asked."""

    def __init__(
        self,
        baseline: Subject | None,
        subjects: Sequence[Subject],
        files: Sequence[str],
        gate: Callable[[Subject, Subject], Quality],
    ) -> None:
        """Read the files, which are in the order of the subjects that are not the baseline.

        Raises:
            ConfigError: files without a baseline, another number of them, or one that no gate wrote.
        """
        self._baseline, self._gate = baseline, gate
        self._judged = {subject.label: subject for subject in subjects if subject is not baseline}
        if files and baseline is None:
            raise ConfigError("quality is given without baseline, the model that it was held against")
        if files and len(files) != len(self._judged):
            raise ConfigError(
                f"{len(files)} files of quality for {len(self._judged)} models that are not the baseline"
            )
        name = "" if baseline is None else baseline.label
        pairs = zip(self._judged, files, strict=False)  # of one length, or there are no files
        self._read = {label: read_quality(Path(file), name) for label, file in pairs}

    def quality(self, label: str) -> Quality | None:
        """What is known of a model; None without a baseline."""
        if self._baseline is None:
            return None
        if label in self._read:
            return self._read[label]
        try:
            return self._gate(self._judged[label], self._baseline)
        except (AntiphonError, MemoryError, RuntimeError) as error:
            # All else is measured, and is not to be lost. Torch tells of short memory by the last of these.
            return not_judged(self._baseline.label, str(error) or type(error).__name__)
