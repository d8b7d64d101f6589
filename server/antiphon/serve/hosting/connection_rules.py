"""Connection rules of a server that is one process."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import Counter

from antiphon.config import ServerConfig
from antiphon.metrics import MetricFamilies
from antiphon.serve.access.addresses import counted_addresses
from antiphon.serve.hosting.connection_limits import connection_limits
from antiphon.serve.transport.listening_sockets import ConnectionRules
from antiphon.supervisor.connection_bounds import ConnectionBounds


def connection_rules(
    config: ServerConfig, runner: web.AppRunner, families: MetricFamilies, *, now_s: float
) -> ConnectionRules:
    """The connection rules of a server that is this process; ``now_s`` is the event loop's time.

    Raises:
        ConfigError: a proxy is no address.
    """
    server = runner.server
    assert server is not None
    turned_away = families.get(Counter, "turned_away_connections")
    return ConnectionRules(
        ConnectionBounds(connection_limits(config), now_s),
        counted_addresses(config.trusted_proxy),
        alive=lambda: server.connections,
        turned_away=turned_away.inc,
        connect_timeout_s=config.limits.connect_timeout_s,
    )
