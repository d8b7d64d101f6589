"""Where to listen: looked at before models are loaded, with the option that is to be changed."""

from __future__ import annotations

import errno
import os
import socket

from antiphon.errors import ConfigError


def check_address(host: str, port: int) -> None:
    """Find out before models are loaded whether this process can listen there; port 0 is any free one.

    Raises:
        ConfigError: no such address on this machine, or the port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.bind(address)
                trial.listen(1)  # with SO_REUSEADDR, a taken port may fail here first
    except OSError as error:
        raise cannot_listen(host, port, error) from error


def cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    """The error for an address, with the option that is to be changed."""
    if isinstance(error, socket.gaierror):
        reason, remedy = error.strerror, "choose an address of this machine with --host"
        return ConfigError(f"cannot listen on {host}: {reason}; {remedy}")
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = f"{host} port {port}"
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        remedy = "choose an address of this machine with --host: 127.0.0.1 for itself, 0.0.0.0 for others too"
    elif error.errno == errno.EACCES:
        remedy = "ports below 1024 are for root; choose another with --port"
    else:
        remedy = "choose another with --port"
    return ConfigError(f"cannot listen on {where}: {reason}; {remedy}")
