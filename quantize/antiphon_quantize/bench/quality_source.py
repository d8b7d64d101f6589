"""The source of the measured models' quality: files of verdicts, or the gate itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from antiphon.errors import AntiphonError, ConfigError
from antiphon_quantize.bench.quality import Quality, not_judged, read_quality
from antiphon_quantize.bench.subject import Subject


class Gate(Protocol):
    """Compares a model with the one it was made from. The gate stands above this package: it is passed in."""

    def __call__(
        self, candidate: Subject, baseline: Subject, *, questions: Path | None, tell: Callable[[str], None]
    ) -> Quality:
        """The verdict, by the limits of the candidate's own recipe.

        Raises:
            MissingExtraError: a package that the gate needs is not installed.
            AntiphonError: the two cannot be compared, or cannot be run.
        """
        ...


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
