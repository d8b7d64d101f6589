"""TCP ports of protocols other than HTTP, each an option ``tcp`` in the form of an address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from antiphon.errors import ConfigError

LOOPBACK: Final = "127.0.0.1"
FORM: Final = "PROTOCOL://[HOST]:PORT[/MODEL][?key=NAME&voice=NAME]"


class TcpProtocol(StrEnum):
    """The protocol of a TCP port."""

    WYOMING = "wyoming"
    AUDIOSOCKET = "audiosocket"


@dataclass(frozen=True, slots=True)
class TcpPort:
    """One TCP port for a protocol other than HTTP. It is reachable only from this machine unless it names a
    ``host``.

    Calls use ``model``, which may be an agent, and ``voice``; None selects the defaults. Callers present no
    key; their sessions and usage count for the key named ``key``.
    """

    protocol: TcpProtocol
    port: int
    host: str = LOOPBACK
    key: str | None = None
    model: str | None = None
    voice: str | None = None

    @property
    def is_announced(self) -> bool:
        """Whether the option ``zeroconf`` announces the port by mDNS: it is a Wyoming port, and other
        machines can reach it.
        """
        is_own = self.host == "localhost" or self.host.startswith("127.") or self.host == "::1"
        return self.protocol is TcpProtocol.WYOMING and not is_own


def read_tcp_ports(texts: Sequence[str], *, has_keys: bool, taken: Sequence[int]) -> tuple[TcpPort, ...]:
    """The ports that ``texts`` describe; the server already uses the port numbers ``taken``.

    Raises:
        ConfigError: an address is invalid or occurs twice, or lacks a key although the server requires keys.
    """
    ports = tuple(map(_read, texts))
    for text, port in zip(texts, ports, strict=True):
        if has_keys and port.key is None:
            raise ConfigError(
                f"tcp = {text!r}: its callers present no key; add ?key=NAME, the name of the key that they "
                "count as, from the file of --api-keys"
            )
        if port.key is not None and not has_keys:
            raise ConfigError(f"tcp = {text!r}: it names a key, and there is no file of --api-keys")
    numbers = [*taken, *(port.port for port in ports)]
    if twice := next((it for it in numbers if numbers.count(it) > 1), None):
        raise ConfigError(f"tcp: the port {twice} is used twice; each needs a different number")
    return ports


def _read(text: str) -> TcpPort:
    try:
        parts = urlsplit(text)
        number = parts.port
    except ValueError:
        raise ConfigError(f"tcp = {text!r}: it is no address; write {FORM}") from None
    if parts.scheme not in list(TcpProtocol):
        raise ConfigError(f"tcp = {text!r}: the protocol is one of {', '.join(TcpProtocol)}; write {FORM}")
    wishes = dict(parse_qsl(parts.query, keep_blank_values=True))
    has_more = parts.username is not None or parts.fragment or wishes.keys() - {"key", "voice"}
    model, voice = parts.path[1:] or None, wishes.get("voice")
    if not number or has_more or "/" in (model or ""):
        raise ConfigError(f"tcp = {text!r}: it is no address; write {FORM}")
    if parts.scheme == TcpProtocol.WYOMING and (model or voice):
        raise ConfigError(f"tcp = {text!r}: its clients choose the model and the voice; name none")
    protocol, host = TcpProtocol(parts.scheme), parts.hostname or LOOPBACK
    return TcpPort(protocol, number, host, wishes.get("key"), model, voice)
