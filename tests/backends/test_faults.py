from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from antiphon.backends.base import IntArray
from antiphon.backends.host import ErrorClassifier
from antiphon.backends.torch_devices import device_probe
from antiphon.errors import DeviceLostError, StepError, UnsupportedError


def working() -> None:
    pass


def broken() -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def raised_by(
    classifier: ErrorClassifier, error: BaseException, rows: Sequence[int] | IntArray = (1,)
) -> BaseException:
    with pytest.raises(BaseException) as raised, classifier.over(rows):  # noqa: PT011  (any kind)
        raise error
    return raised.value


def test_a_fault_on_a_working_device_ends_the_rows_it_touched() -> None:
    cause = IndexError("index out of range")
    error = raised_by(ErrorClassifier(working), cause, np.array([4, 1], np.int32))
    assert isinstance(error, StepError)
    assert error.rows == (4, 1)
    assert all(type(row) is int for row in error.rows)
    assert str(error) == "a step over rows [4, 1] failed: IndexError: index out of range"
    assert error.__cause__ is cause


def test_a_device_that_no_longer_answers_is_lost() -> None:
    error = raised_by(ErrorClassifier(broken), RuntimeError("CUDA error: device-side assert triggered"))
    assert isinstance(error, DeviceLostError)
    assert str(error) == (
        "the device no longer answers after 'CUDA error: device-side assert triggered': "
        "CUDA error: an illegal memory access was encountered"
    )


def test_three_failures_in_a_row_are_the_devices_and_a_step_that_went_well_ends_a_run() -> None:
    classifier = ErrorClassifier(working)
    full = torch.OutOfMemoryError("tried to allocate\n2 GiB")
    for _ in range(3):
        kinds = [type(raised_by(classifier, error)) for error in (full, RuntimeError("odd"))]
        assert kinds == [StepError] * 2
        with classifier.over([0]):
            pass
    kinds = [type(raised_by(classifier, error)) for error in (full, RuntimeError("odd"))]
    assert kinds == [StepError] * 2
    error = raised_by(classifier, full)
    assert isinstance(error, DeviceLostError)
    assert str(error) == ("3 steps in a row failed, the last with OutOfMemoryError: tried to allocate 2 GiB")


@pytest.mark.parametrize("error", [UnsupportedError("no such dtype"), KeyboardInterrupt()])
def test_errors_of_backends_and_a_stop_pass_a_step_as_they_are(error: BaseException) -> None:
    assert raised_by(ErrorClassifier(broken), error, [0]) is error


def test_a_cpu_always_answers() -> None:
    device_probe(torch.device("cpu"))()
