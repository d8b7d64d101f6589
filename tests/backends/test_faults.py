from __future__ import annotations

import torch

from antiphon.backends.faults import FaultJudge
from antiphon.backends.torch_devices import device_probe
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


def test_three_failures_in_a_row_are_the_devices() -> None:
    judge = FaultJudge(working)
    assert isinstance(judge.judge(RuntimeError("odd"), rows=(1,)), StepError)
    judge.note_success()
    full = torch.OutOfMemoryError("tried to allocate\n2 GiB")
    kinds = [type(judge.judge(error, rows=(1,))) for error in (full, RuntimeError("odd"))]
    assert kinds == [StepError] * 2
    error = judge.judge(full, rows=(1,))
    assert isinstance(error, DeviceLostError)
    assert str(error) == ("3 steps in a row failed, the last with OutOfMemoryError: tried to allocate 2 GiB")


def test_a_cpu_always_answers() -> None:
    device_probe(torch.device("cpu"))()
