"""The supervisor as its child sees it: bound to it in life, heard on the child's event loop."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """End this process as soon as the process ``parent``, which has started it, ends.

    A parent that ended before this was asked for is noticed too. Linux alone knows the wish.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def ignore_signals() -> None:
    """Leave the end to the supervisor: a service manager may signal every process of the service."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def control_socket(arguments: list[str]) -> socket.socket:
    """The control socket of a child that was started with ``arguments``: its descriptor, and the parent."""
    descriptor, parent = map(int, arguments)
    ignore_signals()
    die_with_parent(parent)
    return socket.socket(fileno=descriptor)
