"""The kernel's state of a TCP connection, beyond what asyncio shows."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

_ENDED: Final = (4, 5, 7, 8, 9, 11)
"""Linux's states of a connection whose other side sends nothing any more: its FIN or its RST has come."""


def has_ended(transport: asyncio.Transport) -> bool:
    """Whether the peer's side has ended, though not all it sent was read. Only Linux says so."""
    connection = transport.get_extra_info("socket")
    if connection is None or not hasattr(socket, "TCP_INFO"):
        return False
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _ENDED
    except OSError:  # closed meanwhile, or no TCP
        return False


def bound_kernel_buffer(transport: asyncio.Transport, size: int) -> None:
    """Keep the kernel from holding minutes of Opus for a peer that does not read: it grows to megabytes."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
