"""Finds the addresses of callers behind proxies, and parses the networks in the configuration."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import TypeAlias

from antiphon.errors import ConfigError

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

IPV6_PREFIX_BITS = 64
"""The network prefix of one subscriber; all addresses in it count as one."""


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Parse the addresses and networks of ``--trusted-proxy``.

    Raises:
        ConfigError: a text is neither.
    """
    networks: list[Network] = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ConfigError(f"trusted_proxy = {text!r} is no address and no network: {error}") from error
    return tuple(networks)


def client_address(peer: str | None, forwarded: Sequence[str], proxies: Sequence[Network]) -> str:
    """A caller's address: the address of the peer, or the last address in ``X-Forwarded-For`` that does not
    belong to a trusted proxy.

    A client can forge all earlier addresses in the header. IPv6 addresses count by their /64 network, IPv4
    addresses inside IPv6 as IPv4. The result is "" if the peer has no address.
    """
    address = _parse(peer or "")
    if address is None:
        return ""
    hops = [hop.strip() for line in forwarded for hop in line.split(",")]
    while hops and any(address in network for network in proxies):
        hop = _parse(hops.pop())
        if hop is None:
            break  # not an address: the proxy that wrote it is the last known one
        address = hop
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, IPV6_PREFIX_BITS), strict=False))


def counted_addresses(trusted_proxy: Sequence[str]) -> Callable[[str], str]:
    """Return the function that gives the name under which a peer's connections are counted. It is "" for a
    trusted proxy, because a proxy has many callers behind it.

    Raises:
        ConfigError: a proxy is not an address.
    """
    proxies = parse_networks(trusted_proxy)

    def counted(peer: str) -> str:
        return "" if is_within(peer, proxies) else client_address(peer, [], [])

    return counted


def is_within(peer: str, networks: Sequence[Network]) -> bool:
    """Whether an address is in one of the networks."""
    address = _parse(peer)
    return address is not None and any(address in network for network in networks)


def _parse(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address of a header, possibly with a port, brackets or a zone."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if address.version == 6 else None
    return mapped or address
