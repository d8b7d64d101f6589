"""A child's connection to its supervisor: the child ends with the supervisor, and reads its messages on the
event loop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

from antiphon.errors import AntiphonError, ProtocolError
from antiphon.ipc.message_socket import IS_INLINE, MAX_DESCRIPTORS, MAX_INLINE_BYTES
from antiphon.supervisor.messages import CONTROL, Begin, Failed

PR_SET_PDEATHSIG = 1

MEANINGLESS: Final = (
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(getattr(signal, name) for name in ("SIGIO", "SIGPWR") if hasattr(signal, name)),
)
"""Signals that by default end a process, and that the server neither sends nor handles."""


def die_with_parent(parent: int) -> None:
    """End this process as soon as its parent process ``parent`` ends.

    A parent that has already ended is detected too. Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def ignore_signals() -> None:
    """Ignore the supervisor's signals: a service manager may signal every process of the service."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *MEANINGLESS):
        signal.signal(number, signal.SIG_IGN)


def control_socket(arguments: Sequence[str]) -> socket.socket:
    """Open the control socket of a child, ignore the supervisor's signals, and end this process with its
    parent; ``arguments`` has the descriptor and the parent's process id.
    """
    descriptor, parent = map(int, arguments)
    ignore_signals()
    die_with_parent(parent)
    return socket.socket(fileno=descriptor)


def run_child(arguments: Sequence[str], work: Callable[[socket.socket, Begin, Sequence[int]], None]) -> int:
    """Run ``work`` with the control socket, the supervisor's first message and its descriptors.

    Returns the exit code. If the work cannot start, the child sends the supervisor the reason.

    Raises:
        ProtocolError: the first message is of another kind, or the supervisor has ended.
    """
    control = control_socket(arguments)
    data, descriptors, _, _ = socket.recv_fds(control, MAX_INLINE_BYTES + 1, MAX_DESCRIPTORS)
    _, begin = CONTROL.decode(data[1:])
    if not isinstance(begin, Begin):
        raise ProtocolError(f"the supervisor began with {type(begin).__name__}")
    try:
        work(control, begin, descriptors)
    except AntiphonError as error:
        control.setblocking(True)
        control.sendall(IS_INLINE + CONTROL.encode(0, Failed(str(error))))
        return 2
    return 0
