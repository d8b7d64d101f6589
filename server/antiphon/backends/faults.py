"""The meaning of an exception inside a step: some rows lost, or the whole device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import BackendError, DeviceLostError, StepError

FAILURES_IN_A_ROW: Final = 3
"""One step may fail by its input. The sessions of its rows end with it; three in a row fail by no input."""


class FaultJudge:
    """Turns an exception into the error the engine acts on.

    ``probe`` does a little work on the device and raises if it cannot: a CUDA error that is sticky
    fails it, as every later call would.
    """

    def __init__(self, probe: Callable[[], None]) -> None:
        """Begin with a device that is assumed to work."""
        self._probe = probe
        self._failures = 0

    def note_success(self) -> None:
        """Count from the beginning: a step went well."""
        self._failures = 0

    def judge(self, error: Exception, rows: tuple[int, ...]) -> StepError | DeviceLostError:
        """Decide what a failed step that touched ``rows`` means, and make the error to raise from it."""
        self._failures += 1
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if self._failures >= FAILURES_IN_A_ROW:
            return DeviceLostError(f"{self._failures} steps in a row failed, the last with {words}")
        try:
            self._probe()
        except Exception as probe_error:  # whatever a framework raises, its device does not answer
            return DeviceLostError(f"the device no longer answers after '{error}': {probe_error}")
        return StepError(f"a step over rows {list(rows)} failed: {words}", rows=rows)


class Judging:
    """A block of a step that touches ``rows``: what a framework raises becomes the error the engine acts on.

    A class and no generator: every tick enters one.
    """

    __slots__ = ("_judge", "_rows")

    def __init__(self, judge: FaultJudge, rows: Sequence[int] | NDArray[np.int32]) -> None:
        """Judge by this judge."""
        self._judge, self._rows = judge, rows

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; errors of backends pass as they are.

        Raises:
            StepError, DeviceLostError: what any other error means.
        """
        if error is None:
            self._judge.note_success()
        elif isinstance(error, Exception) and not isinstance(error, BackendError):
            # Frameworks' exceptions share no other base.
            raise self._judge.judge(error, tuple(map(int, self._rows))) from error
