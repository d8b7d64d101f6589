"""Sends signed requests to another worker, over TLS unless its address is a loopback address. All methods
block.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

from antiphon.errors import ConfigError, HandOverError, HandOverRefusedError
from antiphon.serve.access.shared_secret import HEADER, SharedSecret

CALLS_PATH: Final = "/api/hand-over"
DRAIN_PATH: Final = "/api/drain"
CANARY_PATH: Final = "/api/canary"
MAX_ANSWER_BYTES: Final = 65_536

FORBIDDEN: Final = 403
"""The HTTP status if a request is signed for a worker with another name; it may also have other reasons."""

SERVER_FAULTS: Final = 500
"""From this HTTP status on, a later request may succeed: 503 means that no row is free."""


def check_target(target: str) -> None:
    """Check the address of a worker.

    Raises:
        ConfigError: the address is invalid, or calls would be sent unencrypted.
    """
    try:
        parts = urlsplit(target)
        is_one = parts.port != 0 and parts.scheme in ("http", "https") and parts.path in ("", "/")
    except ValueError:  # an invalid port or IPv6 address
        is_one = False
    if not is_one or not parts.hostname or "@" in parts.netloc:
        raise ConfigError(f"{target!r} is no address of a worker; write https://HOST:PORT")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ConfigError(
            f"{target}: calls leave this machine over TLS only; write https://{parts.netloc}, "
            "of a worker with --tls-cert and --tls-key, or its --hand-over-port"
        )


def is_loopback(host: str) -> bool:
    """Whether a host is ``localhost`` or a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class OtherWorker:
    """Sends requests to the worker at one address; both workers have the same secret."""

    def __init__(self, target: str, secret: SharedSecret, *, timeout_s: float) -> None:
        """Store the address; each request connects.

        Raises:
            ConfigError: see :func:`check_target`.
        """
        check_target(target)
        self._target, self._secret, self._timeout_s = target.rstrip("/"), secret, timeout_s
        self._name: str | None = None  # the worker's name, once it has reported it

    def take(self, model: str, call: bytes) -> str:
        """Send a call to the worker; return the worker's name.

        Raises:
            HandOverError: the worker refuses the call.
            HandOverRefusedError: it would also refuse the call later.
        """
        answer = self._ask("POST", f"{CALLS_PATH}?model={quote(model)}", call)
        return str(answer.get("worker", ""))

    def facts(self) -> Mapping[str, Any]:
        """The worker's name, and the models whose calls it accepts.

        Raises:
            HandOverError: the worker does not answer.
        """
        facts = self._ask("GET", CALLS_PATH)
        self._name = str(facts.get("worker", ""))
        return facts

    def drain(self, target: str, engine: str = "") -> Mapping[str, Any]:
        """Drain the worker, or only its engine on one device, and move its calls to the worker at ``target``.

        Raises:
            HandOverError: the worker refuses.
        """
        return self._ask("POST", DRAIN_PATH, json.dumps({"target": target, "engine": engine}).encode())

    def set_canary(self, phase: str) -> Mapping[str, Any]:
        """Set the phase of the worker's canary; return the new state.

        Raises:
            HandOverError: the worker refuses.
        """
        return self._ask("POST", CANARY_PATH, json.dumps({"phase": phase}).encode())

    def _ask(self, method: str, path: str, body: bytes = b"") -> Mapping[str, Any]:
        if method == "GET":
            return self._read(*self._sent(method, path, body, ""))
        name = self._name if self._name is not None else self._asked_name()
        status, data = self._sent(method, path, body, name)
        if status == FORBIDDEN and (other := self._asked_name()) != name:  # a worker with another name
            status, data = self._sent(method, path, body, other)
        return self._read(status, data)

    def _asked_name(self) -> str:
        return str(self.facts().get("worker", ""))

    def _sent(self, method: str, path: str, body: bytes, worker: str) -> tuple[int, bytes]:
        header = self._secret.sign(method, path, len(body), time.time(), worker=worker)
        tag = self._secret.tag(header)
        tag.update(body)
        connection = self._connection()
        try:
            connection.putrequest(method, path)
            connection.putheader(HEADER, header)
            connection.putheader("Content-Type", "application/octet-stream")
            connection.putheader("Content-Length", str(len(body) + tag.digest_size))
            connection.endheaders()
            connection.send(body)
            connection.send(tag.digest())
            response = connection.getresponse()
            return response.status, response.read(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            self._name = None  # another worker may have the address next time
            raise HandOverError(f"{self._target} cannot be reached: {error!r}") from error
        finally:
            connection.close()

    def _read(self, status: int, data: bytes) -> Mapping[str, Any]:
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise HandOverError(f"{self._target} answered {status}: {data[:200].decode(errors='replace')}")
        if status >= 300:
            kind = HandOverRefusedError if status < SERVER_FAULTS else HandOverError
            raise kind(f"{self._target} answered {status}: {answer.get('error', '')}")
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._target)
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.netloc, timeout=self._timeout_s)
        tls = self._secret.client_tls()
        return http.client.HTTPSConnection(parts.netloc, timeout=self._timeout_s, context=tls)
