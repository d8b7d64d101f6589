"""The supervisor as its child sees it: bound to it in life, heard on the child's event loop."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final

from antiphon.errors import AntiphonError, ProtocolError
from antiphon.ipc.message_socket import IS_INLINE, MAX_DESCRIPTORS, MAX_INLINE_BYTES
from antiphon.supervisor.messages import CONTROL, Begin, Failed

PR_SET_PDEATHSIG = 1

MEANINGLESS: Final = (
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(getattr(signal, name) for name in ("SIGIO", "SIGPWR") if hasattr(signal, name)),
)
"""Signals that would end a process by default, and that no part of the server sends or handles."""


def die_with_parent(parent: int) -> None:
    """End this process as soon as the process ``parent``, which has started it, ends.

    A parent that ended before this was requested is noticed too. Only Linux has this call.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def ignore_signals() -> None:
    """Leave signals to the supervisor: a service manager may signal every process of the service."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *MEANINGLESS):
        signal.signal(number, signal.SIG_IGN)


def control_socket(arguments: Sequence[str]) -> socket.socket:
    """The control socket of a child that was started with ``arguments``: its descriptor, and the parent."""
    descriptor, parent = map(int, arguments)
    ignore_signals()
    die_with_parent(parent)
    return socket.socket(fileno=descriptor)


def receive_begin(control: socket.socket) -> tuple[Begin, list[int]]:
    """Wait for the supervisor's first message, before there is an event loop.

    Raises:
        ProtocolError: it says something else, or has ended.
    """
    data, descriptors, _, _ = socket.recv_fds(control, MAX_INLINE_BYTES + 1, MAX_DESCRIPTORS)
    _, message = CONTROL.decode(data[1:])
    if not isinstance(message, Begin):
        raise ProtocolError(f"the supervisor began with {type(message).__name__}")
    return message, descriptors


def say_failed(control: socket.socket, error: AntiphonError) -> None:
    """Report to the supervisor why this process cannot begin."""
    control.setblocking(True)
    control.sendall(IS_INLINE + CONTROL.encode(0, Failed(str(error))))
