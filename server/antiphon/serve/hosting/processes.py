"""A server of several processes, as the first of them begins it: sockets, commands, limits."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import secrets
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from antiphon.config import ServerConfig
from antiphon.ipc.health import Health, together
from antiphon.serve.access.addresses import counted_addresses
from antiphon.serve.hosting.banner import banner
from antiphon.serve.hosting.canary_rules import rules_of
from antiphon.serve.hosting.connection_limits import connection_limits
from antiphon.serve.hosting.ports import bound_ports
from antiphon.serve.operator.free_rows import free_rows_port
from antiphon.supervisor.answers import Answers
from antiphon.supervisor.supervisor import Supervisor, SupervisorPlan

ENGINE = (sys.executable, "-m", "antiphon.serve.hosting.engine_process")
FRONT_END = (sys.executable, "-m", "antiphon.serve.hosting.front_end")

ENGINE_STOP_S: Final = 10.0
"""For the step that still runs when the server ends."""


def supervise(config: ServerConfig, front_ends: int) -> int:
    """Serve in so many processes beside the engine's; returns the exit code.

    Raises:
        ConfigError: a process cannot begin, or nothing can listen.
    """
    with bound_ports(config) as listeners:
        return asyncio.run(_supervise(make_plan(config, front_ends, listeners), config))


def make_plan(config: ServerConfig, front_ends: int, listeners: Sequence[socket.socket]) -> SupervisorPlan:
    """What the supervisor is to run."""
    return SupervisorPlan(
        engine=ENGINE,
        front_end=FRONT_END,
        front_ends=front_ends,
        task=pickle.dumps((config, front_ends, secrets.token_bytes(32))),  # it signs ephemeral keys
        listeners=listeners,
        limits=connection_limits(config, front_ends),
        counted_address=counted_addresses(config.trusted_proxy),
        announce=lambda lines: print(  # noqa: T201
            banner(lines, config, listeners[0].getsockname()[1], front_ends), flush=True
        ),
        drain_s=config.limits.drain_timeout_s,
        canary=rules_of(config),
        trace_file=Path(config.trace_file) if config.trace else None,
        leave_s=max(ENGINE_STOP_S, 2 * config.limits.close_timeout_s) + 2.0,
    )


async def _supervise(plan: SupervisorPlan, config: ServerConfig) -> int:
    supervisor = Supervisor(plan)
    async with contextlib.AsyncExitStack() as stack:
        if config.free_rows_port:
            await stack.enter_async_context(
                free_rows_port(config.host, config.free_rows_port, partial(overall, supervisor.answers))
            )
        return await supervisor.run()


async def overall(answers: Answers) -> Health:
    """All engines as one, for the free-rows port."""
    said = await answers.health()
    healths = {name: Health(**health) for name, health in said["models"].items()}
    if healths and said["engine_answers"]:
        return together(healths)
    words = "the engine's process does not answer" if healths else "starting"
    return Health(False, 0.0, False, False, active=0, queued=0, slots=0, detail=words)
