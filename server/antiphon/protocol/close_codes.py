"""The close codes of a WebSocket, and what each one means to a client."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


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


EXPLANATIONS: Final[Mapping[CloseCode, str]] = MappingProxyType(
    {
        CloseCode.NORMAL: "after `bye`, or after the last of `max_steps`",
        CloseCode.GOING_AWAY: "the server shuts down",
        CloseCode.PROTOCOL_ERROR: "a frame that breaks RFC 6455",
        CloseCode.INVALID_DATA: "the data cannot be understood",
        CloseCode.POLICY_VIOLATION: "not allowed: silent for too long, an unknown model, too many sessions, "
        "or something this model cannot do",
        CloseCode.MESSAGE_TOO_BIG: "a message larger than `max_message_bytes`",
        CloseCode.INTERNAL_ERROR: "the server's fault",
        CloseCode.SERVICE_RESTART: "OpenAI Live: the server shuts down, and another one will answer",
        CloseCode.TRY_AGAIN_LATER: "full, or no row within `wait`: come again after `retry_after_s`",
        CloseCode.RETIRED: "OpenAI Realtime: a client of the retired beta",
        CloseCode.MOVED: "the call continues at the worker that `moved` names: resume it there",
        CloseCode.NOT_RESUMABLE: "the call cannot be resumed, or not any more",
        CloseCode.REPLACED: "another connection continues the call",
    }
)
"""The table of docs/protocol.md."""
