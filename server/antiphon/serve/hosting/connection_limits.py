"""What the configuration says of connections; light, since the supervisor asks for it."""

from __future__ import annotations

from antiphon.config import ServerConfig
from antiphon.supervisor.connection_bounds import ConnectionLimits


def connection_limits(config: ServerConfig) -> ConnectionLimits:
    """How many connections there may be."""
    return ConnectionLimits(
        connections=config.limits.max_connections,
        connections_per_address=config.limits.max_connections_per_address,
        new_per_s=config.limits.max_new_connections_per_s,
        new_per_s_per_address=config.limits.max_new_connections_per_address_per_s,
    )
