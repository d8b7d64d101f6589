"""How many connections may come to a server that is one process."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import Counter

from antiphon.config import ServerConfig
from antiphon.engine.metrics import Families
from antiphon.serve.access.addresses import counted_addresses
from antiphon.serve.hosting.door import door_limits
from antiphon.serve.transport.listening import Entrance
from antiphon.supervisor.door import Bounds


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
