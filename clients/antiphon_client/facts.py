"""The facts of a server from ``/api/build_info``; a stock server has none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from antiphon.errors import SessionError
from antiphon_client.address import ServerAddress
from antiphon_client.api_key import NO_KEY, ApiKey

ASK_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server's own description; a field that the server does not report is None.

    ``memory`` is bytes by purpose ("process", "weights", ...), ``hardware`` one line with the machine's name,
    and ``raw`` the whole answer.
    """

    version: str | None = None
    model: str | None = None
    kind: str | None = None
    parameters: int | None = None
    format: str | None = None
    quantization: str | None = None
    backend: str | None = None
    device: str | None = None
    dtype: str | None = None
    slots: int | None = None
    delay_frames: int | None = None
    hardware: str | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)


def format_bytes(size: float) -> str:
    """A size as text: ``"512 B"``, ``"1.5 MiB"``."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def read_facts(answer: Any) -> ServerFacts:
    """Facts from the JSON value of ``/api/build_info``; fields that are missing or of another type are
    None."""
    raw = _object(answer)
    model, backend = _object(raw.get("model")), _object(raw.get("backend"))
    return ServerFacts(
        version=_text(raw.get("version")),
        model=_text(model.get("name")),
        kind=_text(model.get("kind")),
        parameters=_number(model.get("parameters")),
        format=_text(model.get("format")),
        quantization=_text(model.get("quantization")),
        backend=_text(backend.get("name")),
        device=_text(backend.get("device")),
        dtype=_text(model.get("dtype")),
        slots=_number(_object(raw.get("slots")).get("total")),
        delay_frames=_number(model.get("delay_frames")),
        hardware=_hardware(_object(raw.get("hardware"))),
        memory={key: int(value) for key, value in _object(raw.get("memory_bytes")).items() if _number(value)},
        versions={key: str(value) for key, value in _object(raw.get("versions")).items()},
        raw=raw,
    )


def _hardware(machine: Mapping[str, Any]) -> str | None:
    cpus, memory_bytes = _number(machine.get("cpus")), _number(machine.get("memory_bytes"))
    parts = [
        _text(machine.get("cpu")),
        f"{cpus} CPUs" if cpus else None,
        format_bytes(memory_bytes) if memory_bytes else None,
        _text(machine.get("accelerator")),
        _text(machine.get("system")),
    ]
    return ", ".join(part for part in parts if part) or None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


async def ask_facts(
    address: ServerAddress, *, verifies_tls: bool = True, api_key: ApiKey = NO_KEY, model: str | None = None
) -> ServerFacts:
    """Request the description of a server, or of one of its models. A server without a description has no
    facts.

    Raises:
        SessionError: the address does not respond (the message has the command that starts a server), the
            server requires another API key, or it does not have the model.
    """
    params = {} if model is None else {"model": model}
    try:
        async with (
            aiohttp.ClientSession(timeout=ASK_TIMEOUT, headers=api_key.headers) as http,
            http.get(f"{address.http}/api/build_info", ssl=verifies_tls, params=params) as response,
        ):
            if response.status == 401:
                hint = "" if api_key.secret is not None else "; give it with --api-key-file FILE"
                raise SessionError(f"{address.http} says: {(await response.text())[:300].strip()}{hint}")
            if response.status == 404 and response.content_type == "application/json":
                words = _object(await response.json()).get("error", "not found")
                raise SessionError(f"{address.http} says: {str(words)[:300]}")
            if response.status != 200 or response.content_type != "application/json":
                return ServerFacts()
            return read_facts(await response.json())
    except (aiohttp.ClientError, OSError) as error:
        raise cannot_connect(address, error) from error


async def ask_models(
    address: ServerAddress, *, verifies_tls: bool = True, api_key: ApiKey = NO_KEY, model: str | None = None
) -> dict[str, str]:
    """The kinds of a server's models by name, or only the kind of ``model``; empty if the server does not
    report them.
    """
    params = {} if model is None else {"model": model}
    try:
        async with (
            aiohttp.ClientSession(timeout=ASK_TIMEOUT, headers=api_key.headers) as http,
            http.get(f"{address.http}/api/models", ssl=verifies_tls, params=params) as response,
        ):
            answer = _object(await response.json()) if response.status == 200 else {}
    except (aiohttp.ClientError, OSError, ValueError):
        return {}  # the caller's next request reports the failure
    listed = answer.get("models")
    entries = [_object(entry) for entry in listed] if isinstance(listed, list) else []
    named = [(_text(entry.get("name")), _text(entry.get("kind"))) for entry in entries]
    return {name: kind for name, kind in named if name and kind}


def cannot_connect(address: ServerAddress, error: Exception) -> SessionError:
    """The error for a failed connection, with its cause and a remedy."""
    other = replace(address, is_secure=not address.is_secure).http
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return SessionError(
            f"the certificate of {address.http} is not trusted ({error.certificate_error}); use the host "
            "name in the certificate, or --insecure on a trusted network"
        )
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return SessionError(f"{address.http} answers without TLS; call {other}")
    if isinstance(error, aiohttp.ServerDisconnectedError) and not address.is_secure:
        return SessionError(f"{address.http} ends the connection without an answer; with TLS call {other}")
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number and number > 0 else str(error) or "no answer in time"
    return SessionError(
        f"cannot connect to {address.http}: {reason}; start a server there with: {address.serve_command}"
    )
