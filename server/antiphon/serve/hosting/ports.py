"""The ports of a server, one for callers and an optional one for other workers, and their TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from antiphon.config import ServerConfig
from antiphon.errors import ConfigError
from antiphon.serve.access.shared_secret import CERTIFICATE, MAKE_CERTIFICATE, SharedSecret
from antiphon.supervisor.address import bound


@dataclass(frozen=True, slots=True)
class PortTls:
    """The TLS settings of a server's ports: ``workers`` on ``workers_port``, none on the ``bare`` ports, and
    ``callers`` on all others.
    """

    callers: ssl.SSLContext | None = None
    workers: ssl.SSLContext | None = None
    workers_port: int = 0
    bare: tuple[int, ...] = ()

    @property
    def contexts(self) -> list[ssl.SSLContext]:
        """All TLS contexts in use."""
        return [context for context in (self.callers, self.workers) if context is not None]

    def of(self, connection: socket.socket) -> ssl.SSLContext | None:
        """The TLS of an accepted connection, by its port."""
        if self.callers is None and self.workers is None:
            return None
        port = connection.getsockname()[1]
        if port in self.bare:
            return None
        return self.workers if port == self.workers_port and self.workers is not None else self.callers

    def reread(self, certificate: str | None, key: str | None) -> None:
        """Use the certificate in the two PEM files for new connections of callers.

        Raises:
            ConfigError: as :func:`tls_context`; nothing has changed then.
        """
        if self.callers is not None and certificate is not None:
            tls_context(certificate, key)  # checked first, since a failure must not change a context in use
            self.callers.load_cert_chain(certificate, key)


def tls_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """TLS for the two PEM files, or None without them.

    Raises:
        ConfigError: the files cannot be read, or do not belong together.
    """
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        for path in (certificate, key):
            Path(path).open("rb").close()  # ssl does not name the file that is missing
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        is_read = error.reason is not None
        why = "the key belongs to another certificate" if is_read else "one of them is no PEM file"
        raise ConfigError(f"cannot use {certificate} with {key}: {why}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from error
    return context


@contextmanager
def bound_ports(config: ServerConfig) -> Iterator[list[socket.socket]]:
    """The sockets of all ports; the callers' ports come first. They do not listen yet, and are closed at the
    end of the block.

    Raises:
        ConfigError: this machine has no such address, or a port is taken.
    """
    with ExitStack() as stack:
        sockets = stack.enter_context(bound(config.host, config.port))
        if config.hand_over_port:
            sockets += stack.enter_context(bound(config.host, config.hand_over_port, "--hand-over-port"))
        for port in config.tcp_ports:
            sockets += stack.enter_context(bound(port.host, port.port, "--tcp"))
        yield sockets


def port_tls(config: ServerConfig) -> PortTls:
    """The TLS settings of all ports.

    Raises:
        ConfigError: a certificate or a key cannot be read, or they do not belong together.
    """
    callers, file = tls_context(config.tls_cert, config.tls_key), config.hand_over_secret
    bare = tuple(it.port for it in config.tcp_ports)
    if not config.hand_over_port or file is None:
        return PortTls(callers, bare=bare)
    if CERTIFICATE not in SharedSecret.read(Path(file)).key:
        raise ConfigError(
            f"hand_over_port = {config.hand_over_port}: {file} holds no certificate with its key; "
            f"make it with: {MAKE_CERTIFICATE}"
        )
    return PortTls(callers, tls_context(file, file), config.hand_over_port, bare)
