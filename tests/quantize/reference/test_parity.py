"""Sessions in a batch compared with upstream's loop for each alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from antiphon.backends.host import HostBackend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon_quantize.reference.backend import make
from tests.backends.contract import GREEDY, Driver, Reply, assert_same, voice
from tests.quantize.reference import upstream
from tests.support.make_checkpoint import make_checkpoint

SLOTS = 4
CONTEXT = 12
WRAP_FRAMES = 2 * CONTEXT + 6  # Mimi's context is 8 frames, 16 steps at 25 Hz
TOLERANCE = 2e-6
"""Of samples within [-1, 1]: a matrix product over four rows may round differently from one over one."""


MODELS: Mapping[str, Mapping[str, Any]] = {
    "codec": {"kind": "codec"},
    "moshi": {"kind": "moshi", "context": CONTEXT},
    # Acoustic delay 2, and asked to sound very good.
    "hibiki": {"kind": "hibiki", "context": CONTEXT, **upstream.DESCRIBED},
}


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("parity") / request.param
    return load_checkpoint(str(make_checkpoint(folder, seed=11, **MODELS[request.param])))


@pytest.fixture(scope="module")
def backend(checkpoint: Checkpoint) -> Iterator[HostBackend]:
    backend = make(checkpoint, slots=SLOTS, device="cpu", threads=1)
    for row in range(SLOTS):
        backend.set_parameters(row, GREEDY)
    yield backend
    backend.close()


def test_staggered_sessions_with_gaps_equal_upstream_alone(
    checkpoint: Checkpoint, backend: HostBackend
) -> None:
    """Six sessions on four rows, joining and pausing at random, each past twice its context."""
    driver = Driver(backend)
    sessions = {number: voice(number, WRAP_FRAMES, driver.info) for number in range(6)}
    random = np.random.default_rng(5)
    got: dict[int, list[Reply]] = {number: [] for number in sessions}
    waiting, on_row = list(sessions), dict[int, int]()
    while waiting or on_row:
        if waiting and len(on_row) < SLOTS and random.random() < 0.3:
            free = [row for row in range(SLOTS) if row not in on_row]
            on_row[int(random.choice(free))] = waiting.pop(0)
        ready = {row: number for row, number in on_row.items() if random.random() < 0.8}
        if not ready:
            continue
        replies = driver.tick(
            {row: sessions[number][len(got[number])] for row, number in ready.items()},
            reset={row for row, number in ready.items() if not got[number]},
        )
        for row, number in ready.items():
            got[number].append(replies[row])
            if len(got[number]) == WRAP_FRAMES:
                del on_row[row]
    modules = upstream.load(checkpoint)
    for number, frames in sessions.items():
        wanted = upstream.converse(*modules, frames)
        assert_same(got[number], wanted, TOLERANCE)
        assert_lively(checkpoint, wanted)


def assert_lively(checkpoint: Checkpoint, replies: list[Reply]) -> None:
    """Check that the oracle says enough for an agreement to mean something."""
    loudness = [float(np.std(reply.pcm)) for reply in replies if reply.pcm is not None]
    assert len(loudness) == WRAP_FRAMES - checkpoint.spec.delay_frames
    assert np.median(loudness) > 100 * TOLERANCE
    assert len({round(level, 6) for level in loudness}) > WRAP_FRAMES // 2
    if checkpoint.spec.lm is not None:
        assert len({reply.text_token for reply in replies}) > 10
