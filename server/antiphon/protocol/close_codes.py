"""The close codes of a WebSocket; docs/protocol.md has a table of their meanings."""

from __future__ import annotations

from enum import IntEnum


class CloseCode(IntEnum):
    """The codes that this server sends (RFC 6455, section 7.4, and IANA's registry)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    MESSAGE_TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    TRY_AGAIN_LATER = 1013
    RETIRED = 4000
    MOVED = 4307
    NOT_RESUMABLE = 4404
    REPLACED = 4409
