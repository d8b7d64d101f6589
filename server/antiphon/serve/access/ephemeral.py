"""Ephemeral keys, which an application's server gives to browsers in place of the API key.

An ephemeral key is signed, not stored: it contains its owner, its expiry and its session, and every process
with the secret can read it. The server stores nothing, so there is no limit on the number of keys. The holder
of a key can read its content. A key is valid only for realtime sessions, cannot make other keys, and expires
with its API key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from antiphon.errors import FieldError
from antiphon.serve.access.keys import KeyEntry

PREFIX: Final = "ek_"

PATHS: Final = re.compile(r"(/m/[^/]+)?/v1/realtime(/translations|/calls(/[^/]+(/hangup)?)?)?")
"""The paths on which an ephemeral key is valid."""

MIN_SECONDS: Final = 10
MAX_SECONDS: Final = 7200
DEFAULT_SECONDS: Final = 600
"""The limits that OpenAI publishes, in seconds."""

MAX_SESSION_BYTES: Final = 3000
"""Maximum number of bytes of a session in a key, as JSON: the key is sent in a header, and servers accept 8
KiB of headers.
"""

MAX_KEY_CHARS: Final = 8000

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Ephemeral:
    """The content of an ephemeral key: the name and a mark of its API key, and a session.

    Only the server can make and compare the mark. It reveals nothing about the API key.
    """

    name: str
    mark: str
    expires_at: int
    session: Mapping[str, Any]


class EphemeralKeys:
    """Makes and reads ephemeral keys. All processes of a server have the same ``secret``; None means a random
    one.
    """

    def __init__(self, secret: bytes | None = None, *, time_s: Callable[[], float] = time.time) -> None:
        """Sign with ``secret``; ``time_s`` is the time since the epoch."""
        self._secret = secret or secrets.token_bytes(_DIGEST_BYTES)
        self._time_s = time_s

    def issue(self, key: KeyEntry | None, session: Mapping[str, Any], seconds: int) -> tuple[str, int]:
        """A new ephemeral key and its expiry, made with ``key`` if the server requires keys.

        Raises:
            FieldError: the session is too long for a header.
        """
        expires_at = int(self._time_s()) + seconds
        holder = ["", ""] if key is None else [key.name, self._mark(key)]
        facts = [secrets.token_hex(8), *holder, expires_at, session]
        said = json.dumps(facts, separators=(",", ":"), ensure_ascii=False).encode()
        if len(said) > MAX_SESSION_BYTES:
            raise FieldError(
                f"session is {len(said)} bytes of JSON with the key's own, the limit is {MAX_SESSION_BYTES}",
                param="session",
                code="invalid_value",
            )
        sealed = base64.urlsafe_b64encode(self._sign(said) + said).decode("ascii").rstrip("=")
        return PREFIX + sealed, expires_at

    def read(self, presented: str) -> Ephemeral | None:
        """The content of a key; None if the key has expired or belongs to another server."""
        if not presented.startswith(PREFIX) or len(presented) > MAX_KEY_CHARS:
            return None
        sealed = presented.removeprefix(PREFIX)
        try:
            data = base64.b64decode(sealed + "=" * (-len(sealed) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        said = data[_DIGEST_BYTES:]
        if not hmac.compare_digest(data[:_DIGEST_BYTES], self._sign(said)):
            return None
        _, name, mark, expires_at, session = json.loads(said)
        return Ephemeral(name, mark, expires_at, session) if self._time_s() < expires_at else None

    def is_of(self, found: Ephemeral, key: KeyEntry) -> bool:
        """Whether an ephemeral key was made with this API key."""
        return key.name == found.name and hmac.compare_digest(self._mark(key), found.mark)

    def _mark(self, key: KeyEntry) -> str:
        return hmac.digest(self._secret, b"made with" + key.digest, hashlib.sha256).hex()

    def _sign(self, said: bytes) -> bytes:
        return hmac.digest(self._secret, said, hashlib.sha256)
