"""Reads API keys: the names and hashes in a file, and the key in a request.

A line is ``NAME:SHA256[:SESSIONS[:SECONDS]]``. NAME identifies the holder in logs and, if metrics need a key,
in metrics. SHA256 is the hash of the key in hexadecimal. SESSIONS is its limit of concurrent sessions, if it
differs from ``max_sessions_per_key``. SECONDS is its limit of call seconds a day, if it differs from
``max_seconds_per_key``; SESSIONS may then be empty. Empty lines and lines that begin with ``#`` are ignored.
The file contains no keys, so reading it gives no access; keys are random (``antiphon keys NAME``), so it is
not possible to search for the key of a hash. A key is never logged, and no message contains it, except for a
subprotocol that is sent back to its client.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.errors import ConfigError
from antiphon.install import antiphon_command
from antiphon.log import Log

KEY_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}", re.ASCII)
MAX_SESSIONS = MAX_SECONDS = 999_999

_LINE = re.compile(
    rf"({KEY_NAME.pattern}):([0-9a-fA-F]{{64}})(?::([0-9]{{1,6}})|:([0-9]{{0,6}}):([0-9]{{1,6}}))?", re.ASCII
)
_BEARER = re.compile(r"Bearer +(\S+) *", re.IGNORECASE)

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)

HEADERS = ("kyutai-api-key", "x-api-key")
"""Headers with a key in addition to ``Authorization``: of Kyutai's clients, and of clients without bearer
tokens.
"""

QUERY_NAMES = ("auth_id", "worker_auth_id")
"""Query parameters in which stock clients send a key: Kyutai's STT and TTS clients, and Moshi's web client.
"""

SUBPROTOCOL = "openai-insecure-api-key."
"""The prefix of a subprotocol's name that contains a key, as browser clients of OpenAI's Realtime API send
it.
"""


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One line of the file; a limit of None means the default of all keys, 0 means no limit. ``seconds`` are
    per day.
    """

    name: str
    digest: bytes
    sessions: int | None = None
    seconds: int | None = None


def digest_of(key: str) -> bytes:
    """The hash of a key, as in the file."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def format_key(key: KeyEntry) -> str:
    """The line that describes a key in the file."""
    limits = [key.sessions, key.seconds] if key.seconds is not None else [key.sessions]
    written = "".join(f":{'' if limit is None else limit}" for limit in limits)
    return f"{key.name}:{key.digest.hex()}{'' if written == ':' else written}"


def parse_keys(text: str, source: str) -> tuple[KeyEntry, ...]:
    """The keys of a file's text; ``source`` names the file in errors.

    Raises:
        ConfigError: an invalid line (not quoted: it may contain a key), or a name that occurs twice.
    """
    keys: dict[str, KeyEntry] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise ConfigError(
                f"{source} line {number} is not NAME:SHA256[:SESSIONS[:SECONDS]]; "
                f"{antiphon_command('keys NAME')} makes such a line"
            )
        name, digest, alone, sessions, seconds = match.groups()
        sessions = alone or sessions
        if name in keys:
            raise ConfigError(f"{source} line {number}: the name '{name}' is there twice")
        keys[name] = KeyEntry(
            name,
            bytes.fromhex(digest),
            int(sessions) if sessions else None,
            int(seconds) if seconds else None,
        )
    return tuple(keys.values())


def presented_key(headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
    """The key of a request: from ``Authorization``, another header, a subprotocol or the query; None if there
    is none.
    """
    if bearer := _BEARER.fullmatch(headers.get("Authorization", "")):
        return bearer[1]
    if key := next((headers[name] for name in HEADERS if headers.get(name)), None):
        return key
    for offered in headers.get("Sec-WebSocket-Protocol", "").split(","):
        if offered.strip().startswith(SUBPROTOCOL):
            return offered.strip().removeprefix(SUBPROTOCOL)
    return next((query[name] for name in QUERY_NAMES if query.get(name)), None)


def chosen_subprotocol(headers: Mapping[str, str]) -> str | None:
    """The offered subprotocol that the answer selects; None if none is offered.

    A browser fails the connection unless the server selects an offered subprotocol. The server selects the
    first one without a key. It selects one with a key only if no other was offered; the key then returns to
    the client that sent it.
    """
    offered = [name.strip() for name in headers.get("Sec-WebSocket-Protocol", "").split(",")]
    names = [name for name in offered if _TOKEN.fullmatch(name)]
    return next((name for name in names if not name.startswith(SUBPROTOCOL)), names[0] if names else None)


def find_key(keys: Sequence[KeyEntry], presented: str) -> KeyEntry | None:
    """Find the presented key, in constant time: the time reveals neither the key nor how similar a wrong key
    is.
    """
    digest = digest_of(presented)
    found: KeyEntry | None = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key
    return found


class KeyFile:
    """The keys of a file that may change while the server runs: a changed file is read at the next check.

    If the file can no longer be read, the former keys stay valid and a line is logged. A file without keys
    gives no access.
    """

    def __init__(self, path: Path, log: Log | None = None) -> None:
        """Read the file.

        Raises:
            ConfigError: the file cannot be read, has no key, or is invalid for :func:`parse_keys`.
        """
        self._path = path
        self._log = log or Log(__name__)
        self._version = self._look()
        self._keys = self._read()
        if not self._keys:
            raise ConfigError(
                f"{path} holds no key, so it refuses every request; {antiphon_command('keys NAME')} makes one"
            )

    def find(self, presented: str) -> KeyEntry | None:
        """The entry of the presented key, if it is in the file."""
        self._refresh()
        return find_key(self._keys, presented)

    def named(self, name: str) -> KeyEntry | None:
        """The key of this name, if the file has one."""
        self._refresh()
        return next((key for key in self._keys if key.name == name), None)

    def holds(self, key: KeyEntry) -> bool:
        """Whether the file still has this key, even with other limits."""
        self._refresh()
        return any(it.name == key.name and it.digest == key.digest for it in self._keys)

    def reread(self) -> None:
        """Read the file now, even if it appears unchanged."""
        self._version = self._look()
        try:
            self._keys = self._read()
        except ConfigError as error:
            self._log.error("keys not read again", file=self._path, reason=str(error))
            return
        self._log.info("keys read again", file=self._path, keys=len(self._keys))

    def _refresh(self) -> None:
        if self._look() != self._version:
            self.reread()

    def _look(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> tuple[KeyEntry, ...]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"cannot read the API keys in {self._path}: {reason}") from error
        return parse_keys(text, str(self._path))
