from __future__ import annotations

import torch

from antiphon.backends.faults import FaultJudge, device_probe
from antiphon.errors import DeviceLostError, StepError


def working() -> None:
    pass


def broken() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_fault_on_a_working_device_ends_the_rows_it_touched() -> None:
    error = FaultJudge(working).judge(IndexError("index out of range"), rows=(0, 3))
    assert isinstance(error, StepError)
    assert error.rows == (0, 3)
    assert str(error) == "a step over rows [0, 3] failed: IndexError: index out of range"


def test_a_device_that_no_longer_answers_is_lost() -> None:
    error = FaultJudge(broken).judge(RuntimeError("CUDA error: device-side assert triggered"), rows=(0,))
    assert isinstance(error, DeviceLostError)
    assert str(error) == (
        "the device no longer answers after 'CUDA error: device-side assert triggered': "
        "CUDA error: an illegal memory access was encountered"
    )


def test_out_of_memory_may_happen_once_but_not_in_a_row() -> None:
    judge = FaultJudge(working)
    full = torch.OutOfMemoryError("tried to allocate 2 GiB")
    assert isinstance(judge.judge(full, rows=(1,)), StepError)
    judge.note_success()
    assert isinstance(judge.judge(full, rows=(1,)), StepError)
    error = judge.judge(full, rows=(1,))
    assert isinstance(error, DeviceLostError)
    assert str(error) == "out of memory in 2 steps in a row: tried to allocate 2 GiB"


def test_another_fault_between_breaks_the_row_of_memory_faults() -> None:
    judge = FaultJudge(working)
    full = torch.OutOfMemoryError("tried to allocate 2 GiB")
    kinds = [type(judge.judge(error, rows=())) for error in (full, RuntimeError("odd"), full)]
    assert kinds == [StepError] * 3


def test_a_cpu_always_answers() -> None:
    device_probe(torch.device("cpu"))()
