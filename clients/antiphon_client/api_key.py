"""The API key of a client, from the command line or a file, never printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antiphon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An optional API key; its ``repr`` does not show it."""

    secret: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raise ConfigError for a key that is invalid in an HTTP header."""
        if self.secret is not None and not (self.secret.isascii() and self.secret.isprintable()):
            raise ConfigError("the API key has characters that are not printable ASCII")
        if self.secret is not None and (not self.secret or " " in self.secret):
            raise ConfigError("the API key is empty or has spaces in it")

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers of every request."""
        return {} if self.secret is None else {"Authorization": f"Bearer {self.secret}"}


NO_KEY = ApiKey()


def add_key_arguments(add: Any) -> None:
    """Add ``--api-key`` and ``--api-key-file`` with a parser's or a group's ``add_argument``."""
    add("--api-key", metavar="KEY", help="key of a server that requires one; visible in the process list")
    add("--api-key-file", type=Path, metavar="FILE", help="file that contains only the key")


def pop_key(values: dict[str, Any]) -> ApiKey:
    """Remove ``api_key`` and ``api_key_file`` from the parsed arguments ``values``, and return the key.

    Raises:
        ConfigError: both are given, the file cannot be read, or it has no key.
    """
    given, file = values.pop("api_key"), values.pop("api_key_file")
    if given is not None and file is not None:
        raise ConfigError("--api-key and --api-key-file are both given; one key is enough")
    if file is None:
        return ApiKey(given)
    try:
        return ApiKey(file.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"cannot read the API key in {file}: {reason}") from error
