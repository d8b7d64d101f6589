"""The ports of a server: one for callers, and one for other workers where it is asked for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from antiphon.config import ServerConfig
from antiphon.errors import ConfigError
from antiphon.serve.access.shared_secret import CERTIFICATE, MAKE_CERTIFICATE, SharedSecret
from antiphon.serve.transport.tls import PortTls, tls_context
from antiphon.supervisor.address import bound


@contextmanager
def bound_ports(config: ServerConfig) -> Iterator[list[socket.socket]]:
    """The sockets of all ports, those for callers first; they do not listen yet, and are closed at the end.

    Raises:
        ConfigError: no such address on this machine, or a port is taken.
    """
    with ExitStack() as stack:
        sockets = stack.enter_context(bound(config.host, config.port))
        if config.hand_over_port:
            sockets += stack.enter_context(bound(config.host, config.hand_over_port, "--hand-over-port"))
        yield sockets


def port_tls(config: ServerConfig) -> PortTls:
    """The TLS of all ports.

    Raises:
        ConfigError: a certificate or a key cannot be read, or they do not belong together.
    """
    callers, file = tls_context(config.tls_cert, config.tls_key), config.hand_over_secret
    if not config.hand_over_port or file is None:
        return PortTls(callers)
    if CERTIFICATE not in SharedSecret.read(Path(file)).key:
        raise ConfigError(
            f"hand_over_port = {config.hand_over_port}: {file} holds no certificate with its key; "
            f"make it with: {MAKE_CERTIFICATE}"
        )
    return PortTls(callers, tls_context(file, file), config.hand_over_port)
