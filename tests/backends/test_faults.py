from __future__ import annotations

import numpy as np
import pytest
import torch

from antiphon.backends.faults import FaultJudge, Judging
from antiphon.backends.torch_devices import device_probe
from antiphon.errors import DeviceLostError, StepError, UnsupportedError


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


def test_what_a_step_raises_is_judged_with_its_rows_and_why() -> None:
    cause = IndexError("index out of range")
    judging = Judging(FaultJudge(working), np.array([4, 1], np.int32))
    with pytest.raises(StepError, match=r"^a step over rows \[4, 1\] failed") as raised, judging:
        raise cause
    assert raised.value.rows == (4, 1)
    assert all(type(row) is int for row in raised.value.rows)
    assert raised.value.__cause__ is cause


@pytest.mark.parametrize("error", [UnsupportedError("no such dtype"), KeyboardInterrupt()])
def test_errors_of_backends_and_a_stop_pass_a_step_as_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, Judging(FaultJudge(broken), [0]):
        raise error
    assert raised.value is error


def test_a_step_that_went_well_ends_a_run_of_failures() -> None:
    judge = FaultJudge(working)
    for _ in range(3):
        for _ in range(2):
            with pytest.raises(StepError), Judging(judge, [0]):
                raise RuntimeError("odd")
        with Judging(judge, [0]):
            pass


def test_a_cpu_always_answers() -> None:
    device_probe(torch.device("cpu"))()
