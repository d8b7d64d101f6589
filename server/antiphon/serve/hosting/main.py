"""``antiphon serve``: reads the configuration and starts the server in one process or several.

Exit codes: 0 after SIGTERM, 130 after Ctrl-C, 70 when the server cannot continue, as after the loss of the
device, 2 for a configuration that cannot be served.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from antiphon.config import ServerConfig
from antiphon.cores import usable_cores
from antiphon.errors import ConfigError
from antiphon.log import Log, set_up_logging
from antiphon.option import tuned
from antiphon.serve.hosting.options import check_files, parse_command_line
from antiphon.supervisor.child import MEANINGLESS
from antiphon.supervisor.connection_bounds import raise_open_file_limit


def main(argv: Sequence[str]) -> int:
    """Serve until a signal ends it or the server cannot continue; returns the exit code.

    Raises:
        AntiphonError: the server cannot start.
    """
    config = parse_command_line(argv)
    front_ends = front_ends_of(config)
    if front_ends:
        set_up_logging(config.log_level, process="supervisor")
    else:
        set_up_logging(config.log_level)
    if changed := tuned(config):
        Log().warning("experiment", **changed)
    raise_open_file_limit()
    with first_signals():
        check_files(config)
        # Each imports modules that the other does not need, which keeps a supervisor small.
        if front_ends:
            with modules_kept():
                from antiphon.serve.hosting.processes import serve_in_processes

            return serve_in_processes(config, front_ends)
        with modules_kept():
            from antiphon.serve.hosting.one_process import serve

        return serve(config)


@contextmanager
def modules_kept() -> Iterator[None]:
    """Import modules without garbage collection, which would visit their objects in vain, now and later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def first_signals() -> Iterator[None]:
    """Let SIGTERM end the process until the server handles it; ignore other signals.

    Without a handler, process 1 of a container gets no signals.
    """

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(0)

    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, *MEANINGLESS)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def front_ends_of(config: ServerConfig, *, platform: str = sys.platform, cpus: int | None = None) -> int:
    """Number of front-end processes; 0: one process for everything.

    ``auto`` is the number of cores not used by engine threads (one per model and device), and at least one.
    Engines on several devices have separate processes, so 0 then means ``auto``.

    Raises:
        ConfigError: front-end processes are not supported on this system.
    """
    several = len(config.devices) > 1
    if platform != "linux":
        if config.front_ends or several:
            raise ConfigError(
                f"front_ends = {config.front_ends}: processes need Linux; use --front-ends 0 on {platform}"
            )
        return 0
    if config.front_ends is not None and not (several and config.front_ends == 0):
        return config.front_ends
    return max(1, (cpus or usable_cores()) - len(config.served) * len(config.devices))
