"""Ephemeral keys: what a server of its own gives to a browser, so that the browser never has the API key.

An ephemeral key is signed, not stored: it says whose it is, until when it is good and for which session, and
every process of the server that has the secret can read it. Nothing is kept for one, so any number can be
made. Its holder can read what it says. It is valid for realtime sessions only, not for further keys, and ends
with the API key that it was made with.
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

PATHS: Final = re.compile(r"(/m/[^/]+)?/v1/realtime(/translations)?")
"""Where an ephemeral key is good."""

MIN_SECONDS: Final = 10
MAX_SECONDS: Final = 7200
DEFAULT_SECONDS: Final = 600
"""The published limits."""

MAX_SESSION_BYTES: Final = 3000
"""Of the session in a key, as JSON: the key travels in a header, of which servers take 8 KiB."""

MAX_KEY_CHARS: Final = 8000

_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Ephemeral:
    """What an ephemeral key says: the name of the API key it was made with, a mark of it, and a session.

    The mark can be made and compared by the server only: its holder learns nothing of the API key by it.
    """

    name: str
    mark: str
    expires_at: int
    session: Mapping[str, Any]


class EphemeralKeys:
    """Makes and reads them. ``secret`` is the same in all processes of a server, drawn when None."""

    def __init__(self, secret: bytes | None = None, *, time_s: Callable[[], float] = time.time) -> None:
        """Sign with ``secret``; ``time_s`` is the time since the epoch."""
        self._secret = secret or secrets.token_bytes(_DIGEST_BYTES)
        self._time_s = time_s

    def issue(self, key: KeyEntry | None, session: Mapping[str, Any], seconds: int) -> tuple[str, int]:
        """A new key and when it expires, made with ``key`` where the server requests keys.

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
        """What a key says; None when it is none of this server's, or no longer good."""
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
