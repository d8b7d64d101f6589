"""Errors as clients of OpenAI's HTTP API read them: a status, and a JSON object with a type and a code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from antiphon.errors import (
    AntiphonError,
    AudioError,
    DrainingError,
    FieldError,
    KeyRevokedError,
    ProtocolError,
    ServerFullError,
    SessionLimitError,
    SessionTimeoutError,
    UnknownModelError,
    UnknownSessionError,
    UnsupportedError,
    UsageLimitError,
)
from antiphon.serve.access.callers import OPENAI_PATH, error_body

INVALID: Final = "invalid_request_error"
RATE_LIMIT: Final = "rate_limit_error"
SERVER: Final = "server_error"

DRAINING_RETRY_AFTER_S: Final = 10
"""Retry-After while the server drains: by then another one should have taken its place."""

_EXCEPTIONS: Final[Mapping[int, type[web.HTTPException]]] = MappingProxyType(
    {
        kind.status_code: kind
        for kind in (
            web.HTTPBadRequest,
            web.HTTPUnauthorized,
            web.HTTPNotFound,
            web.HTTPRequestTimeout,
            web.HTTPTooManyRequests,
            web.HTTPInternalServerError,
            web.HTTPServiceUnavailable,
        )
    }
)

_CODES: Final[Mapping[int, str]] = MappingProxyType(
    {
        403: "forbidden",
        404: "not_found",
        405: "method_not_allowed",
        408: "request_timeout",
        413: "request_too_large",
        421: "misdirected_request",
    }
)
"""Of answers that are no error of ours: the words of a status."""


@dataclass(frozen=True, slots=True)
class ApiError:
    """An error of the API, its HTTP status, and its message."""

    status: int
    code: str
    message: str
    type: str = INVALID
    param: str | None = None
    retry_after_s: int | None = None

    @property
    def body(self) -> str:
        """The JSON that clients read."""
        return error_body(self.message, code=self.code, kind=self.type, param=self.param)

    @property
    def event(self) -> bytes:
        """The event of a stream that ends with this error."""
        return f"data: {self.body}\n".encode()

    def exception(self) -> web.HTTPException:
        """The answer to a request, to be raised."""
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return _EXCEPTIONS[self.status](text=self.body, headers=headers, content_type="application/json")


def api_error(error: AntiphonError, *, param: str | None = None) -> ApiError:
    """What an error is in this API; ``param`` is the field it is about, where it does not say so itself.

    ``openai``'s packages try 408, 429 and all from 500 on again, twice, after ``Retry-After``.
    """
    message, wait_s = str(error), retry_after_of(error)
    match error:
        case FieldError():
            return ApiError(400, error.code, message, param=error.param)
        case UnsupportedError():
            return ApiError(400, "unsupported_value", message, param=param)
        case ProtocolError() | AudioError():
            return ApiError(400, "invalid_value", message, param=param)
        case KeyRevokedError():
            return ApiError(401, "invalid_api_key", message)
        case UnknownModelError():
            return ApiError(404, "model_not_found", message, param="model")
        case UnknownSessionError():
            return ApiError(404, "session_not_found", message)
        case SessionTimeoutError():
            return ApiError(408, "session_timeout", message)
        case UsageLimitError():
            return ApiError(429, "insufficient_quota", message, RATE_LIMIT, retry_after_s=wait_s)
        case SessionLimitError():
            return ApiError(429, "rate_limit_exceeded", message, RATE_LIMIT, retry_after_s=wait_s)
        case ServerFullError():
            return ApiError(503, "server_full", message, SERVER, retry_after_s=wait_s)
        case DrainingError():
            return ApiError(503, "server_draining", message, SERVER, retry_after_s=wait_s)
        case _:
            return ApiError(500, "server_error", message, SERVER)


def retry_after_of(error: AntiphonError) -> int | None:
    """Seconds after which another attempt may succeed; None where nothing says so."""
    if isinstance(error, SessionLimitError | ServerFullError):
        return error.retry_after_s
    return DRAINING_RETRY_AFTER_S if isinstance(error, DrainingError) else None


def is_openai(request: web.Request) -> bool:
    """Whether a request reads errors of this API: a WebSocket's client is shown one line instead."""
    return OPENAI_PATH.match(request.path) is not None and hdrs.UPGRADE not in request.headers


@web.middleware
async def openai_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every refusal on OpenAI's paths OpenAI's body, whatever refused."""
    try:
        return await handler(request)
    except web.HTTPException as refusal:
        if refusal.status >= 400 and is_openai(request) and refusal.content_type != "application/json":
            message = (refusal.text or refusal.reason).strip()
            if isinstance(refusal, web.HTTPMethodNotAllowed):
                message = f"nothing answers {request.method} {request.path[:100]} here"
            kind = INVALID if refusal.status < 500 else SERVER
            code = _CODES.get(refusal.status, "invalid_request" if refusal.status < 500 else "server_error")
            refusal.text = error_body(message, code=code, kind=kind)
            refusal.content_type = "application/json"
        raise
