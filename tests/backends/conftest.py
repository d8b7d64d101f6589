"""Fixtures of the contract suite: each test runs once for every backend in ``subjects.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from antiphon.backends.base import Backend
from antiphon.models.sampling import SamplingParameters
from tests.backends.contract import SLOTS, Driver, Subject
from tests.backends.subjects import PACKED, SUBJECTS


@pytest.fixture(scope="session", params=SUBJECTS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    make = SUBJECTS.get(request.param) or PACKED[request.param]
    return make(tmp_path_factory)


@pytest.fixture(scope="session")
def shared_backend(subject: Subject) -> Iterator[Backend]:
    backend = subject.make(SLOTS)
    yield backend
    backend.close()


@pytest.fixture
def driver(subject: Subject, shared_backend: Backend) -> Driver:
    """A driver of a backend that other tests used before: any state in its rows, default parameters."""
    for row in range(SLOTS):
        shared_backend.set_parameters(row, SamplingParameters())
    return Driver(shared_backend, subject.comparable)
