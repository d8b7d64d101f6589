"""What an exception inside a step of torch means: some rows lost, or the whole device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from antiphon.errors import DeviceLostError, StepError

_OUT_OF_MEMORY_LIMIT = 2  # one may be a spike that freeing the cache clears; twice in a row is not


class FaultJudge:
    """Turns an exception into the error the engine acts on.

    ``probe`` does a little work on the device and raises if it cannot: a CUDA error that is sticky
    fails it, as every later call would.
    """

    def __init__(self, probe: Callable[[], None]) -> None:
        """Begin with a device that is assumed to work."""
        self._probe = probe
        self._out_of_memory_in_a_row = 0

    def note_success(self) -> None:
        """Hear that a step went well."""
        self._out_of_memory_in_a_row = 0

    def judge(self, error: Exception, rows: tuple[int, ...]) -> StepError | DeviceLostError:
        """Decide what a failed step that touched ``rows`` means, and make the error to raise from it."""
        is_out_of_memory = isinstance(error, torch.OutOfMemoryError)
        self._out_of_memory_in_a_row = self._out_of_memory_in_a_row + 1 if is_out_of_memory else 0
        if self._out_of_memory_in_a_row >= _OUT_OF_MEMORY_LIMIT:
            return DeviceLostError(f"out of memory in {self._out_of_memory_in_a_row} steps in a row: {error}")
        try:
            self._probe()
        except RuntimeError as probe_error:
            return DeviceLostError(f"the device no longer answers after '{error}': {probe_error}")
        return StepError(f"a step over rows {list(rows)} failed: {type(error).__name__}: {error}", rows=rows)


def device_probe(device: torch.device) -> Callable[[], None]:
    """Make the probe for a device: nothing on a CPU, memory given back and one kernel awaited on CUDA."""

    def probe() -> None:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.zeros(1, device=device).add_(1).item()

    return probe
