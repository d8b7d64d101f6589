"""How many connections may come, for a server in one process or in several."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import Counter

from antiphon.config import ServerConfig
from antiphon.engine.metrics import Families
from antiphon.serve.access.addresses import counted_addresses
from antiphon.serve.transport.listening import Entrance
from antiphon.supervisor.door import Bounds, DoorLimits


def door_limits(config: ServerConfig) -> DoorLimits:
    """What the configuration says of connections."""
    return DoorLimits(
        connections=config.limits.max_connections,
        connections_per_address=config.limits.max_connections_per_address,
        new_per_s=config.limits.max_new_connections_per_s,
    )


def entrance_of(config: ServerConfig, runner: web.AppRunner, families: Families, *, now_s: float) -> Entrance:
    """The entrance of a server that is this process; ``now_s`` is the event loop's time.

    Raises:
        ConfigError: a proxy is no address.
    """
    server = runner.server
    assert server is not None
    turned_away = families.get(
        Counter,
        "turned_away_connections",
        "Connections closed at once, since their address had as many as it may.",
        (),
    )
    return Entrance(
        Bounds(door_limits(config), now_s),
        counted_addresses(config.trusted_proxy),
        alive=lambda: server.connections,
        turned_away=turned_away.inc,
        connect_timeout_s=config.limits.connect_timeout_s,
    )
