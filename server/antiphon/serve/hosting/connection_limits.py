"""Connection limits from the configuration; imports little, since the supervisor uses it."""

from __future__ import annotations

from typing import Final

from antiphon.config import ServerConfig
from antiphon.serve.transport.open_files import open_file_limit
from antiphon.supervisor.connection_bounds import ConnectionLimits

OTHER_FILES: Final = 256
"""Open files of a process that are no connections: models, logs, recordings, rings."""

LEAST: Final = 64
"""Connections of a process with hardly any files; it says so when they run out."""


def connection_limits(config: ServerConfig, processes: int = 1) -> ConnectionLimits:
    """How many connections there may be, of which each takes an open file of one of so many ``processes``."""
    files = processes * max(LEAST, open_file_limit() - OTHER_FILES)
    return ConnectionLimits(
        connections=min(config.limits.max_connections, files),
        connections_per_address=config.limits.max_connections_per_address,
        new_per_s=config.limits.max_new_connections_per_s,
        new_per_s_per_address=config.limits.max_new_connections_per_address_per_s,
    )
