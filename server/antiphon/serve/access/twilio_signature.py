"""Checks Twilio's signature of a request: HMAC-SHA1 of the whole address with the account's token.

After twilio.com/docs/usage/security; vectors of the ``twilio`` package 9.13.0 are in the tests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from pathlib import Path
from typing import Final

from antiphon.errors import ConfigError

HEADER: Final = "X-Twilio-Signature"
MIN_CHARS: Final = 16

_MOVED: Final = re.compile(r"/[^?]*\?model=(?P<model>[^&]+)&?")
"""The path and query of a request whose ``/m/NAME`` prefix a proxy has moved to the query."""


def read_token(path: Path) -> str:
    """The token in a file, without surrounding white space.

    Raises:
        ConfigError: the file cannot be read, or is empty.
    """
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"twilio_token = '{path}': {error}") from error
    if len(token) < MIN_CHARS:
        raise ConfigError(
            f"twilio_token = '{path}': {len(token)} characters, a token has at least {MIN_CHARS}"
        )
    return token


def is_signed(header: str, host: str, raw_path: str, token: str) -> bool:
    """Whether ``header`` is Twilio's signature of a request for ``raw_path`` (with its query) at ``host``.

    A proxy may terminate TLS, and may move a model's name from the path to the query, as the stack's load
    balancer does. The configured address may end with a slash or not.
    """
    given = header.encode(errors="surrogateescape")
    path, mark, query = raw_path.partition("?")
    moved = _MOVED.fullmatch(raw_path)
    paths = [(path, f"{mark}{query}"), *([(f"/m/{moved['model']}{path}", "")] if moved else [])]
    places = [f"{host}{path.rstrip('/')}{slash}{rest}" for path, rest in paths for slash in ("", "/")]
    urls = [f"{scheme}://{place}" for scheme in ("wss", "https", "ws", "http") for place in places]
    return any(hmac.compare_digest(given, signature(url, token)) for url in urls)


def signature(url: str, token: str) -> bytes:
    """The header's value for a WebSocket at this address."""
    return base64.b64encode(hmac.new(token.encode(), url.encode(), hashlib.sha1).digest())
