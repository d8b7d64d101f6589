"""What a step that fails leaves behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from antiphon.backends.reference.backend import ReferenceBackend, make
from antiphon.errors import DeviceLostError, StepError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from tests.backends.contract import GREEDY, Driver, assert_same, voice
from tools.make_checkpoint import make_checkpoint

SLOTS = 3


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceBackend]:
    checkpoint = load_checkpoint(str(make_checkpoint(tmp_path_factory.mktemp("failures") / "moshi")))
    backend = make(checkpoint, slots=SLOTS, device="cpu", threads=1)
    for row in range(SLOTS):
        backend.set_parameters(row, GREEDY)
    yield backend
    backend.close()


@pytest.mark.parametrize("stage", ["encode", "forward_depformer", "decode"])
def test_a_failed_step_costs_the_executed_rows_and_no_other(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Rows 0 and 1 run when upstream raises; row 2 pauses, and goes on as if nothing had been."""
    driver = Driver(backend)
    frames = voice(1, 12, driver.info)
    wanted = driver.run(2, frames)
    assert_same(driver.run(2, frames[:4]), wanted[:4])
    driver.tick({0: frames[0], 1: frames[1]}, reset={0, 1}, rows=SLOTS)
    driver.tick({0: frames[0], 1: frames[1]}, rows=SLOTS)

    def fail(*arguments: object) -> None:
        raise IndexError("index 9999 is out of range")

    assert backend._lm is not None
    module = backend._mimi if hasattr(backend._mimi, stage) else backend._lm.model
    with monkeypatch.context() as patch:
        patch.setattr(module, stage, fail)
        with pytest.raises(StepError, match=r"rows \[0, 1\] failed: IndexError: index 9999") as caught:
            driver.tick({0: frames[2], 1: frames[2]}, rows=SLOTS)
    assert caught.value.rows == (0, 1)
    assert_same([driver.tick({2: frame})[2] for frame in frames[4:]], wanted[4:])
    assert_same(driver.run(1, frames), wanted, tolerance=2e-6)


def test_memory_that_stays_full_loses_the_device(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(backend)
    frame = voice(1, 1, driver.info)[0]

    def fail(*arguments: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(backend._mimi, "encode", fail)
        with pytest.raises(StepError, match="tried to allocate 20 GiB"):
            driver.tick({0: frame}, reset={0}, rows=SLOTS)
        with pytest.raises(DeviceLostError, match="out of memory in 2 steps in a row"):
            driver.tick({0: frame}, reset={0}, rows=SLOTS)


def test_a_snapshot_of_another_model_is_refused(
    backend: ReferenceBackend, tmp_path_factory: pytest.TempPathFactory
) -> None:
    longer = make_checkpoint(tmp_path_factory.mktemp("failures") / "longer", context=30)
    other = make(load_checkpoint(str(longer)), slots=1, device="cpu", threads=1)
    with pytest.raises(
        UnsupportedError, match=r"of another model: .*ring is \[2, 4, 30, 12\], not \[2, 4, 24, 12\]"
    ):
        backend.restore(0, other.snapshot(0))
