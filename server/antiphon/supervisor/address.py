"""Listening addresses: each is bound before models are loaded, and errors name the option to change."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from antiphon.errors import ConfigError

ALSO: Final = {"::": ("0.0.0.0",)}
"""Hosts with a second socket: IPv6 sockets accept no IPv4 connections."""


def bind(host: str, port: int, option: str = "--port") -> list[socket.socket]:
    """Bind sockets on every address of a host, not listening yet; port 0 means any free port, the same on all
    addresses.

    ``::`` means every address of this machine, including IPv4 addresses. From now on the port is reserved:
    another server cannot bind it.

    Raises:
        ConfigError: this machine does not have the address, or the port is taken.
    """
    sockets: list[socket.socket] = []
    try:
        found = [it for name in (host, *ALSO.get(host, ())) for it in _addresses(name, port)]
        for family, kind, protocol, _, address in dict.fromkeys(found):
            if sockets and not port:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            sockets.append(one := socket.socket(family, kind, protocol))
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                one.bind(address)  # without SO_REUSEADDR a socket that only is bound conflicts too
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                reuse(one)  # connections of a server that has just ended
                one.bind(address)
    except OSError as error:
        for one in sockets:
            one.close()
        raise cannot_listen(host, port, error, option) from error
    return sockets


def _addresses(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)


@contextmanager
def bound(host: str, port: int, option: str = "--port") -> Iterator[list[socket.socket]]:
    """The sockets of :func:`bind`, closed at the end."""
    sockets = bind(host, port, option)
    try:
        yield sockets
    finally:
        for one in sockets:
            one.close()


def listen(one: socket.socket, backlog: int) -> None:
    """Accept connections on a socket of :func:`bind`.

    Raises:
        OSError: the port was taken meanwhile.
    """
    reuse(one)
    one.setblocking(False)
    one.listen(backlog)


def reuse(one: socket.socket) -> None:
    """Allow the address to be bound again as soon as this socket and its connections have closed."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def cannot_listen(host: str, port: int, error: OSError, option: str = "--port") -> ConfigError:
    """The error for an address, with the option to change."""
    if isinstance(error, socket.gaierror):
        reason, remedy = error.strerror, "choose an address of this machine with --host"
        return ConfigError(f"cannot listen on {host}: {reason}; {remedy}")
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = f"{host} port {port}"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        remedy = "choose an address of this machine with --host: 127.0.0.1 for itself, 0.0.0.0 for others too"
    elif error.errno == errno.EACCES:
        remedy = f"ports below 1024 are for root; choose another with {option}"
    else:
        remedy = f"choose another with {option}"
    return ConfigError(f"cannot listen on {where}: {reason}; {remedy}")


def is_own(address: str) -> bool:
    """Whether an address is a loopback address, or an IPv6 network contains ``::1``. An address "" counts as
    loopback.
    """
    if not address:
        return True
    network = ipaddress.ip_network(address, strict=False)
    return network.network_address.is_loopback or ipaddress.ip_address("::1") in network
