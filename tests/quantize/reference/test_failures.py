"""State after a failed step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from antiphon.backends.host import HostBackend
from antiphon.errors import DeviceLostError, StepError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon_quantize.reference.backend import ReferenceExecutor, make
from tests.backends.contract import GREEDY, Driver, assert_same, voice
from tests.support.make_checkpoint import make_checkpoint

SLOTS = 3


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostBackend]:
    checkpoint = load_checkpoint(str(make_checkpoint(tmp_path_factory.mktemp("failures") / "moshi")))
    backend = make(checkpoint, slots=SLOTS, device="cpu", threads=1)
    for row in range(SLOTS):
        backend.set_parameters(row, GREEDY)
    yield backend
    backend.close()


def executor_of(backend: HostBackend) -> ReferenceExecutor:
    assert isinstance(backend.executor, ReferenceExecutor)
    return backend.executor


@pytest.mark.parametrize("stage", ["encode", "forward_depformer", "decode"])
def test_a_failed_step_costs_the_named_rows_and_no_other(
    backend: HostBackend, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Rows 0 and 1 run when upstream raises; row 2 pauses, and goes on as if nothing had been."""
    driver = Driver(backend)
    frames = voice(1, 12, driver.info)
    wanted = driver.run(2, frames)
    assert_same(driver.run(2, frames[:4]), wanted[:4])
    driver.tick({0: frames[0], 1: frames[1]}, reset={0, 1})
    driver.tick({0: frames[0], 1: frames[1]})

    def fail(*arguments: object) -> None:
        raise IndexError("index 9999 is out of range")

    executor = executor_of(backend)
    assert executor.lm is not None
    module = executor.mimi if hasattr(executor.mimi, stage) else executor.lm.model
    with monkeypatch.context() as patch:
        patch.setattr(module, stage, fail)
        with pytest.raises(StepError, match=r"rows \[0, 1\] failed: IndexError: index 9999") as caught:
            driver.tick({0: frames[2], 1: frames[2]})
    assert caught.value.rows == (0, 1)
    assert_same([driver.tick({2: frame})[2] for frame in frames[4:]], wanted[4:])
    assert_same(driver.run(1, frames), wanted, tolerance=2e-6)


def test_memory_that_stays_full_loses_the_device(
    backend: HostBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(backend)
    frame = voice(1, 1, driver.info)[0]

    def fail(*arguments: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(executor_of(backend).mimi, "encode", fail)
        for _ in range(2):
            with pytest.raises(StepError, match="tried to allocate 20 GiB"):
                driver.tick({0: frame}, reset={0})
        with pytest.raises(DeviceLostError, match="3 steps in a row failed, the last with OutOfMemoryError"):
            driver.tick({0: frame}, reset={0})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"context": 30},
            r"of another model: .*ring is float32 \[2, 4, 30, 12\] in it, and float32 \[2, 4, 24, 12\]",
        ),
        ({"num_layers": 1}, r"of another model: lm.model.transformer.layers.1.* is nothing in it, and "),
        (
            {"delays": [0, 0, *[2] * 7, 0, *[2] * 7]},
            r"another model: lm.delays.tokens is int32 \[17, 4\] in it, and int32 \[17, 3\]",
        ),
    ],
)
def test_a_snapshot_of_another_model_is_refused(
    backend: HostBackend,
    tmp_path_factory: pytest.TempPathFactory,
    change: dict[str, Any],
    sentence: str,
) -> None:
    folder = make_checkpoint(tmp_path_factory.mktemp("failures") / "other", **change)
    other = Driver(make(load_checkpoint(str(folder)), slots=1, device="cpu", threads=1))
    other.run(0, voice(1, 32, other.info))
    with pytest.raises(UnsupportedError, match=sentence):
        backend.restore(0, other.backend.snapshot(0))


def test_a_snapshot_goes_through_numpy_and_is_as_long_as_the_row_has_lived(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = make_checkpoint(tmp_path_factory.mktemp("failures") / "narrow")
    checkpoint = load_checkpoint(str(folder))
    backend = make(checkpoint, slots=2, device="cpu", dtype="bfloat16", threads=1)
    driver, frames = Driver(backend), voice(1, 12, backend.info)
    backend.set_parameters(0, GREEDY)
    driver.run(0, frames[:4])
    taken = backend.snapshot(0)
    host = backend.to_host(taken)
    rings = {name: array for name, array in host.items() if name.endswith(".ring") and name.startswith("lm.")}
    assert {(array.dtype.name, array.shape[2]) for array in rings.values()} == {("uint16", 4)}
    wanted = [driver.tick({0: frame})[0] for frame in frames[4:]]
    backend.restore(0, backend.from_host(host))
    assert_same([driver.tick({0: frame})[0] for frame in frames[4:]], wanted)
