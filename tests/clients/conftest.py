"""A port for the tests of clients that find no server."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def unused_tcp_port() -> Iterator[int]:
    """A port without a server, in place of pytest-asyncio's: it is held, so that no other test gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
