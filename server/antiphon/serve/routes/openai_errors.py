"""Errors in the format of OpenAI's HTTP API: a status, and a JSON object with a type and a code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from antiphon.errors import AntiphonError, FieldError
from antiphon.protocol.wire_errors import ErrorType, wire_form
from antiphon.serve.access.callers import OPENAI_PATH, error_body

DRAINING_RETRY_AFTER_S: Final = 10
"""Seconds of Retry-After while the server drains. By then another server should have replaced it."""

STATUSES: Final[Mapping[int, Callable[..., web.HTTPException]]] = MappingProxyType(
    {
        400: web.HTTPBadRequest,
        401: web.HTTPUnauthorized,
        404: web.HTTPNotFound,
        408: web.HTTPRequestTimeout,
        413: partial(web.HTTPRequestEntityTooLarge, max_size=0, actual_size=0),
        415: web.HTTPUnsupportedMediaType,
        429: web.HTTPTooManyRequests,
        500: web.HTTPInternalServerError,
        503: web.HTTPServiceUnavailable,
    }
)
"""The answers named by :data:`~antiphon.protocol.wire_errors.WIRE_FORMS`."""

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
"""Errors that are not exceptions of this server, by their status."""


@dataclass(frozen=True, slots=True)
class ApiError:
    """An error of the API, its HTTP status, and its message."""

    status: int
    code: str
    message: str
    type: str = ErrorType.INVALID
    param: str | None = None
    retry_after_s: int | None = None

    @property
    def body(self) -> str:
        """The JSON body of the error."""
        return error_body(self.message, code=self.code, kind=self.type, param=self.param)

    @property
    def event(self) -> bytes:
        """The event of a stream that ends with this error."""
        return f"data: {self.body}\n".encode()

    def exception(self) -> web.HTTPException:
        """The response to a request, to be raised."""
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return STATUSES[self.status](text=self.body, headers=headers, content_type="application/json")


def api_error(error: AntiphonError, *, param: str | None = None) -> ApiError:
    """The API's form of an error; ``param`` is the field that the error concerns, if the error itself does
    not name the field.

    OpenAI's packages retry 408, 429 and every status from 500 on, twice, after ``Retry-After``.
    """
    form, status = wire_form(error), wire_form(error).openai_status
    if isinstance(error, FieldError):
        return ApiError(status, error.code, str(error), param=error.param)
    return ApiError(
        status,
        form.code,
        str(error),
        form.type,
        param=form.param or (param if status == web.HTTPBadRequest.status_code else None),
        retry_after_s=error.retry_after_s or (DRAINING_RETRY_AFTER_S if status == 503 else None),
    )


def is_openai(request: web.Request) -> bool:
    """Whether the client of a request reads errors of this API. A WebSocket client gets one line instead."""
    return OPENAI_PATH.match(request.path) is not None and hdrs.UPGRADE not in request.headers


@web.middleware
async def openai_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every refusal on OpenAI's paths a body in OpenAI's format."""
    try:
        return await handler(request)
    except web.HTTPException as refusal:
        if refusal.status >= 400 and is_openai(request) and refusal.content_type != "application/json":
            message = (refusal.text or refusal.reason).strip()
            if isinstance(refusal, web.HTTPMethodNotAllowed):
                message = f"there is no route for {request.method} {request.path[:100]}"
            kind = ErrorType.INVALID if refusal.status < 500 else ErrorType.SERVER
            code = _CODES.get(refusal.status, "invalid_request" if refusal.status < 500 else "server_error")
            refusal.text = error_body(message, code=code, kind=kind)
            refusal.content_type = "application/json"
        raise
