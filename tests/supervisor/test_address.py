"""Addresses to listen on, and the address in the banner."""

from __future__ import annotations

import socket

import pytest

from antiphon.config import ServerConfig
from antiphon.errors import ConfigError
from antiphon.serve.hosting.processes import banner
from antiphon.supervisor.address import bound, listen


def answers(host: str, port: int) -> bool:
    """Whether a connection to an address is taken."""
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "answering"),
    [
        ("::", {"127.0.0.1", "::1"}),
        ("0.0.0.0", {"127.0.0.1"}),
        ("127.0.0.1", {"127.0.0.1"}),
        ("::1", {"::1"}),
    ],
)
def test_the_banner_names_an_address_that_answers(host: str, answering: set[str]) -> None:
    with bound(host, 0) as sockets:
        for one in sockets:
            listen(one, 8)
        (port,) = {one.getsockname()[1] for one in sockets}
        assert {address for address in ("127.0.0.1", "::1") if answers(address, port)} == answering
        last = banner(["tiny"], ServerConfig(host=host), port).splitlines()[-1]
        shown = last.removeprefix("http://").partition(f":{port} ")[0].strip("[]")
        assert shown in answering


def test_a_port_of_ipv4_that_is_taken_refuses_both_families() -> None:
    with bound("0.0.0.0", 0) as (other,):
        listen(other, 8)
        port = other.getsockname()[1]
        words = f"cannot listen on :: port {port}: Address already in use"
        with pytest.raises(ConfigError, match=words), bound("::", port):
            pass
        assert not answers("::1", port)
