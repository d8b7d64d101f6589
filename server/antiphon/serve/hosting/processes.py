"""Starts the processes of a server, with their sockets, commands and limits. It imports little."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import secrets
import socket
import sys
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from antiphon import __version__
from antiphon.canary.trial import TrialRules
from antiphon.config import ServerConfig
from antiphon.ipc.health import Health, together
from antiphon.ipc.message_socket import Handle
from antiphon.metrics import MetricFamilies
from antiphon.serve.access.addresses import counted_addresses
from antiphon.serve.hosting.announcement import Announcement
from antiphon.serve.hosting.ports import bound_ports
from antiphon.serve.operator.free_rows import free_rows_port
from antiphon.supervisor.answers import Answers
from antiphon.supervisor.children import Child, ChildProcesses
from antiphon.supervisor.connection_bounds import ConnectionLimits, open_file_limit
from antiphon.supervisor.connection_queue import WAITING_SHARE
from antiphon.supervisor.messages import Message
from antiphon.supervisor.supervisor import Supervisor, SupervisorPlan

ENGINE = (sys.executable, "-m", "antiphon.serve.hosting.engine_process")
FRONT_END = (sys.executable, "-m", "antiphon.serve.hosting.front_end")

ENGINE_STOP_S: Final = 10.0
"""Seconds for a running step when the server ends."""

OTHER_FILES: Final = 256
"""Open files of a process in addition to connections: models, logs, recordings, rings."""

LEAST: Final = 64
"""Minimum number of connections of a process, even if the limit on open files is low. The process then logs
when no files are left.
"""


def serve_in_processes(config: ServerConfig, front_ends: int) -> int:
    """Serve in ``front_ends`` processes in addition to the engine's; return the exit code.

    Raises:
        ConfigError: a process cannot begin, or no port can be opened.
    """
    task = pickle.dumps((config, front_ends, secrets.token_bytes(32)))  # it signs ephemeral keys
    devices = [device or "" for device in config.devices]
    children = ChildProcesses(ENGINE, FRONT_END, task, devices if len(devices) > 1 else ("",))

    async def run(listeners: Sequence[socket.socket]) -> int:
        starts = children.start_engine, children.start_front_end, children.begin_front_end
        plan = replace(make_plan(config, front_ends, listeners, *starts), engines=len(devices))
        supervisor = Supervisor(plan)
        return await supervise(supervisor, config, partial(overall, supervisor.answers, config))

    with bound_ports(config) as listeners:
        return asyncio.run(run(listeners))


def make_plan(
    config: ServerConfig,
    front_ends: int,
    listeners: Sequence[socket.socket],
    start_engine: Callable[[int, Handle[Message]], Awaitable[Child]],
    start_front_end: Callable[[int, Handle[Message]], Awaitable[Child]],
    begin_front_end: Callable[[int, Child, Sequence[Child]], None],
    families: MetricFamilies | None = None,
) -> SupervisorPlan:
    """The supervisor's plan; if ``front_ends`` is 0, there is one front end, in this process.

    Raises:
        ConfigError: a proxy is not an address.
    """
    port = listeners[0].getsockname()[1]
    has_trial = config.canary is not None and front_ends
    return SupervisorPlan(
        start_engine=start_engine,
        start_front_end=start_front_end,
        begin_front_end=begin_front_end,
        front_ends=max(1, front_ends),
        listeners=listeners,
        limits=connection_limits(config, max(1, front_ends)),
        counted_address=counted_addresses(config.trusted_proxy),
        announce=lambda lines: print(banner(lines, config, port, front_ends), flush=True),  # noqa: T201
        drain_s=config.limits.drain_timeout_s,
        canary=TrialRules(share=config.canary_share) if has_trial else None,
        trace_file=Path(config.trace_file) if config.trace else None,
        leave_s=max(ENGINE_STOP_S, 2 * config.limits.close_timeout_s) + 2.0,
        replaces=front_ends > 0,
        families=families,
    )


async def supervise(
    supervisor: Supervisor, config: ServerConfig, health: Callable[[], Awaitable[Health]]
) -> int:
    """Run a supervisor, and the free-rows port with the result of ``health``; returns the exit code.

    Raises:
        ConfigError: a process cannot begin, or no port can be opened.
    """
    async with contextlib.AsyncExitStack() as stack:
        if config.free_rows_port:
            await stack.enter_async_context(free_rows_port(config.host, config.free_rows_port, health))
        if config.zeroconf:
            announcement = Announcement([it for it in config.tcp_ports if it.is_announced])
            await stack.enter_async_context(announcement.announcing(supervisor.opened))
        return await supervisor.run()


async def overall(answers: Answers, config: ServerConfig) -> Health:
    """The health of all engines as one, for the free-rows port. A caller of an agent takes two rows."""
    said = await answers.health()
    healths = {name: Health(**health) for name, health in said["models"].items()}
    if healths and said["engine_answers"]:
        return together(healths, needs_all=bool(config.served_agents))
    words = "the engine's process does not answer" if healths else "starting"
    return Health(False, 0.0, False, False, active=0, queued=0, slots=0, free=0, detail=words)


def connection_limits(config: ServerConfig, processes: int = 1) -> ConnectionLimits:
    """Limits on connections; each open or waiting connection needs a file descriptor in one of ``processes``
    processes.
    """
    files = round(processes * max(LEAST, open_file_limit() - OTHER_FILES) / (1 + WAITING_SHARE))
    return ConnectionLimits(
        connections=min(config.limits.max_connections, files),
        connections_per_address=config.limits.max_connections_per_address,
        new_per_s=config.limits.max_new_connections_per_s,
        new_per_s_per_address=config.limits.max_new_connections_per_address_per_s,
    )


def banner(models: Sequence[str], config: ServerConfig, port: int, front_ends: int = 0) -> str:
    """The text that the terminal shows when the server is ready: version, one line for each model, and the
    address.
    """
    scheme = "https" if config.tls_cert else "http"
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host  # for browsers
    shown = f"[{host}]" if ":" in host else host
    processes = f", {front_ends} front-end process{'es' if front_ends > 1 else ''}" if front_ends else ""
    lines = [
        textwrap.fill(model, 80, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        for model in models
    ]
    return "\n".join(
        [f"antiphon {__version__}{processes}", *lines, f"{scheme}://{shown}:{port}   Ctrl-C stops"]
    )
