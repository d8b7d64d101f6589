"""Stacks for tests: HAProxy, workers with the null backend, all on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.stack.stack import Stack, running_stack

TLS = Path(__file__).parents[1] / "serve" / "tls"
VALUES = {"ANTIPHON_BACKEND": "null", "DUPLEX_SLOTS": "2", "ECHO_SLOTS": "2"}
"""What an operator would write into .env: no model has to be loaded, and two callers fill a worker."""

PATIENT = Path(__file__).parent / "patient.yaml"
"""What a busy machine needs on top of compose.yaml for callers in real time to be let in and answered."""

Start = Callable[..., AbstractAsyncContextManager[Stack]]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate with its key in one file, as HAProxy wants it."""
    file = tmp_path / "tls.pem"
    file.write_text((TLS / "test-cert.pem").read_text() + (TLS / "test-key.pem").read_text())
    return file


@pytest.fixture
def start(tmp_path: Path, certificate: Path) -> Start:
    """Starts a stack: ``async with start(duplex=2, echo=1) as stack``; every row is free and seen to be.

    Without ``agents`` nobody answers the load balancer's agent checks.
    ``balancer`` is more of its environment.
    """

    @asynccontextmanager
    async def start(
        *,
        agents: bool = True,
        values: Mapping[str, str] | None = None,
        balancer: Mapping[str, str] | None = None,
        **counts: int,
    ) -> AsyncIterator[Stack]:
        ports = {} if agents else {"FREE_ROWS_PORT": "9"}  # the port of "discard", which nobody listens on
        environment = {**ports, **(balancer or {})}
        values = {**VALUES, **(values or {})}
        async with running_stack(tmp_path, counts, values, certificate, environment, [PATIENT]) as stack:
            for service in counts:
                rows = (
                    100 if not agents else 1 if service == "agent" else 2
                )  # an agent's models have one each
                await stack.sees(service, {worker.host: rows for worker in stack.of(service)})
                await stack.sees(f"{service}-queue", {worker.host: 1 for worker in stack.of(service)})
            yield stack

    return start
