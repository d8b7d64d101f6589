"""The table of errors: the form of each class in every protocol of this server.

:func:`wire_form` finds the row of an error's class, or of its nearest base class with a row. A new error
needs a row only if clients should see a new code. docs/errors.md shows the table, and a test compares the
two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from antiphon.errors import (
    AntiphonError,
    AudioError,
    ConfigError,
    DrainingError,
    KeyRevokedError,
    MovedError,
    PeerConnectionError,
    ProtocolError,
    RecordingTooLongError,
    ReplacedError,
    ResumeError,
    RetiredApiError,
    ServerFullError,
    SessionError,
    SessionFailedError,
    SessionLimitError,
    SessionTimeoutError,
    TextModelError,
    UnknownModelError,
    UnknownSessionError,
    UnsupportedError,
    UsageLimitError,
)
from antiphon.protocol.close_codes import CloseCode
from antiphon.protocol.kyutai import NO_FREE_CHANNELS


class ErrorType(StrEnum):
    """OpenAI's ``type`` of an error."""

    INVALID = "invalid_request_error"
    RATE_LIMIT = "rate_limit_error"
    SERVER = "server_error"


@dataclass(frozen=True, slots=True)
class WireForm:
    """The form of one class of errors in every protocol.

    ``close`` is the close code of a WebSocket on ``/api/chat`` and on Kyutai's paths, ``openai_close`` on
    OpenAI's paths. ``status`` is the HTTP status outside ``/v1/``, ``openai_status`` the status below
    ``/v1/``. ``worker_status`` is the status for another worker or an operator's command, which retry after a
    status of 500 or above. ``type``, ``code`` and ``param`` are OpenAI's fields over HTTP; ``event`` has the
    type and the code in events if they differ. ``kyutai`` replaces the message in Kyutai's ``Error``.
    """

    close: CloseCode
    openai_close: CloseCode
    status: int
    openai_status: int
    worker_status: int
    type: ErrorType
    code: str
    param: str | None = None
    event: tuple[ErrorType, str] | None = None
    kyutai: str | None = None

    @property
    def in_events(self) -> tuple[ErrorType, str]:
        """OpenAI's type and code of this error in an event."""
        return self.event or (self.type, self.code)


_INVALID, _RATE, _SERVER = ErrorType.INVALID, ErrorType.RATE_LIMIT, ErrorType.SERVER
_OURS, _POLICY, _DATA = CloseCode.INTERNAL_ERROR, CloseCode.POLICY_VIOLATION, CloseCode.INVALID_DATA
_FULL, _LOST = CloseCode.TRY_AGAIN_LATER, CloseCode.NOT_RESUMABLE
_LEAVING, _RESTART = CloseCode.GOING_AWAY, CloseCode.SERVICE_RESTART
_LIMIT: Final = (_RATE, "rate_limit_exceeded")

WIRE_FORMS: Final[Mapping[type[AntiphonError], WireForm]] = MappingProxyType(
    {  # two close codes, HTTP statuses: own, OpenAI's, workers'; then OpenAI's type and code
        AntiphonError: WireForm(_OURS, _OURS, 500, 500, 403, _SERVER, "server_error"),
        ConfigError: WireForm(_OURS, _OURS, 500, 500, 400, _SERVER, "server_error"),
        UnsupportedError: WireForm(_POLICY, _POLICY, 400, 400, 409, _INVALID, "unsupported_value"),
        ProtocolError: WireForm(_DATA, _POLICY, 400, 400, 403, _INVALID, "invalid_value"),
        RetiredApiError: WireForm(
            _DATA, CloseCode.RETIRED, 400, 400, 403, _INVALID, "beta_api_shape_disabled"
        ),
        TextModelError: WireForm(_OURS, _OURS, 503, 503, 403, _SERVER, "text_model_failed"),
        AudioError: WireForm(_DATA, _POLICY, 415, 400, 403, _INVALID, "invalid_value"),
        RecordingTooLongError: WireForm(_DATA, _POLICY, 413, 400, 403, _INVALID, "invalid_value"),
        SessionError: WireForm(_OURS, _OURS, 503, 500, 403, _SERVER, "server_error"),
        ServerFullError: WireForm(
            _FULL, _FULL, 503, 503, 503, _SERVER, "server_full", event=_LIMIT, kyutai=NO_FREE_CHANNELS
        ),
        DrainingError: WireForm(_LEAVING, _RESTART, 503, 503, 503, _SERVER, "server_draining"),
        UnknownModelError: WireForm(_POLICY, _POLICY, 404, 404, 404, _INVALID, "model_not_found", "model"),
        UnknownSessionError: WireForm(_POLICY, _POLICY, 404, 404, 403, _INVALID, "session_not_found"),
        SessionLimitError: WireForm(_POLICY, _FULL, 429, 429, 403, *_LIMIT),
        UsageLimitError: WireForm(_POLICY, _POLICY, 429, 429, 403, _RATE, "insufficient_quota"),
        KeyRevokedError: WireForm(_POLICY, _POLICY, 503, 401, 403, _INVALID, "invalid_api_key"),
        SessionTimeoutError: WireForm(_POLICY, _POLICY, 503, 408, 403, _INVALID, "session_timeout"),
        PeerConnectionError: WireForm(_POLICY, _POLICY, 503, 503, 503, _SERVER, "peer_connection_failed"),
        ReplacedError: WireForm(
            CloseCode.REPLACED, CloseCode.REPLACED, 503, 500, 403, _INVALID, "session_replaced"
        ),
        MovedError: WireForm(CloseCode.MOVED, CloseCode.MOVED, 503, 500, 403, _INVALID, "session_moved"),
        ResumeError: WireForm(_LOST, _LOST, 503, 500, 403, _INVALID, "session_not_resumable"),
        SessionFailedError: WireForm(_OURS, _OURS, 503, 500, 503, _SERVER, "server_error"),
    }
)


def wire_form(error: AntiphonError) -> WireForm:
    """The row of an error's class, or of its nearest base class with a row."""
    return next(WIRE_FORMS[kind] for kind in type(error).__mro__ if kind in WIRE_FORMS)


def close_only(error: AntiphonError) -> tuple[tuple[()], int]:
    """Return no message and the error's close code, for protocols without a message for errors."""
    return (), wire_form(error).close
