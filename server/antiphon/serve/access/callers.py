"""Checks the identity, the rights and the session counts of callers before any other work.

:class:`SessionLedger` counts a session for as long as its request lasts, so the session is released however
the request ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from aiohttp import web

from antiphon.config import ServerConfig
from antiphon.errors import ConfigError, KeyRevokedError, SessionLimitError, UsageLimitError
from antiphon.limits import Limits
from antiphon.serve.access.addresses import Network, client_address, is_within, parse_networks
from antiphon.serve.access.ephemeral import PATHS, EphemeralKeys
from antiphon.serve.access.key_form import cookie_key
from antiphon.serve.access.keys import KeyEntry, KeyFile, presented_key
from antiphon.serve.access.supervisor_client import SupervisorClient
from antiphon.serve.access.twilio_signature import read_token
from antiphon.serve.access.usage import UsageLog, UsageRecord
from antiphon.supervisor.address import is_own
from antiphon.supervisor.connection_bounds import ADDRESS_SHARE
from antiphon.supervisor.messages import Take, Use

OPENAI_PATH = re.compile(r"(/m/[^/]+)?/v1/")
"""Paths of OpenAI's API, and of other clients that were written for it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: its key, where keys are required, and its address."""

    key: KeyEntry | None
    address: str

    @property
    def name(self) -> str:
        """The caller's name in logs: the name of its key, or "" if no keys are required."""
        return self.key.name if self.key is not None else ""


LEAST_SHARE = 4
"""Minimum sessions per address on a server of any size, since several people may share one address."""

ANYBODY = Caller(None, "")
"""A caller without a key and an address."""


class Access:
    """Checks the keys and limits of callers, and counts their sessions and their usage. Used on the event
    loop only.
    """

    def __init__(
        self, config: ServerConfig, client: SupervisorClient | None = None, secret: bytes | None = None
    ) -> None:
        """Read the keys and the trusted proxies.

        ``client`` counts sessions and usage for the whole server; if it is None, this process counts.
        ``running`` returns the usage of active calls at the last check, in seconds by key. ``secret`` is
        passed to :class:`EphemeralKeys`.

        Raises:
            ConfigError: the file of keys cannot be used, or a proxy is not an address.
        """
        self._keys = KeyFile(Path(config.api_keys)) if config.api_keys is not None else None
        self._token_file = None if config.twilio_token is None else Path(config.twilio_token)
        self.twilio_token = None if self._token_file is None else read_token(self._token_file)
        self._proxies = parse_networks(config.trusted_proxy)
        self._protected = frozenset(config.protect)
        if self._protected and self._keys is None:
            raise ConfigError("protect is given without api_keys; name the file with --api-keys")
        self.usage = UsageLog(Path(config.usage) if config.usage is not None else None)
        self.running: Mapping[str, float] = {}
        self.client = client or SupervisorClient.here()
        self.ledger = SessionLedger(config.limits, self.client, proxies=self._proxies)
        self.ephemeral = EphemeralKeys(secret)
        self._limits = config.limits

    @property
    def requires_keys(self) -> bool:
        """Whether callers need a key."""
        return self._keys is not None

    def reread_keys(self) -> None:
        """Read the file of keys again, if there is one."""
        if self._keys is not None:
            self._keys.reread()

    def reread_token(self) -> None:
        """Read Twilio's token again, if there is one.

        Raises:
            ConfigError: the file cannot be used; the token remains unchanged.
        """
        if self._token_file is not None:
            self.twilio_token = read_token(self._token_file)

    def is_open(self, what: str) -> bool:
        """Whether a route of health, metrics or the page needs no key."""
        return what not in self._protected

    def needs_key(self, request: web.Request) -> bool:
        """Whether a request lacks a required key. A wrong key does not count as missing."""
        shown = presented_key(request.headers, request.query) or cookie_key(request)
        return self._keys is not None and shown is None

    def identify(self, request: web.Request, *, may_lack_key: bool = False) -> Caller:
        """The sender of a request; with ``may_lack_key`` it may present a key later, through
        :meth:`identified_by`.

        Raises:
            web.HTTPUnauthorized: the key is missing, or not in the file.
        """
        is_later = may_lack_key and self.needs_key(request)
        return Caller(None if is_later else self._key_of(request), self.address_of(request))

    def identified_by(self, key: str | None, caller: Caller) -> Caller:
        """Identify a caller by ``key`` in its first message, if it needs a key and has not yet presented one.

        Raises:
            KeyRevokedError: the key is missing, or not in the file.
        """
        if self._keys is None or caller.key is not None:
            return caller
        found = None if key is None else self._keys.find(key)
        if found is None:
            raise KeyRevokedError("the key is missing, or not known here")
        return Caller(found, caller.address)

    def holder(self, name: str | None, address: str) -> Caller:
        """A caller whose protocol has no keys: its sessions and usage count for the key with this name.

        Raises:
            KeyRevokedError: the file of keys has no such name.
        """
        key = None if self._keys is None else self._keys.named(name or "")
        if self._keys is not None and key is None:
            raise KeyRevokedError(f"the file of keys has no key '{name or ''}'")
        return Caller(key, address)

    def knows(self, key: str) -> bool:
        """Whether a key is in the file."""
        return self._keys is not None and self._keys.find(key) is not None

    def address_of(self, request: web.Request) -> str:
        """The origin of a request: the address that a trusted proxy gives, otherwise the address of the
        peer.
        """
        return client_address(request.remote, request.headers.getall("X-Forwarded-For", []), self._proxies)

    async def admit(self, caller: Caller) -> None:
        """Check that a caller may begin; raises as :meth:`check`."""
        limited = [caller.name] if self.limit_s(caller) else []
        self.check(caller, await self.used(limited))

    def limit_s(self, caller: Caller) -> int:
        """The seconds that a caller may use in a day; 0 means no limit."""
        key = caller.key
        if key is None or self._keys is None:
            return 0
        return key.seconds if key.seconds is not None else self._limits.max_seconds_per_key

    async def used(self, keys: Iterable[str]) -> dict[str, float]:
        """Seconds that each of these keys has used today on the whole server, including active calls."""
        names = dict.fromkeys(keys, 0.0)
        if not names:
            return {}
        sums = await self.client.used(self._use(names))
        if self.usage.is_shared:
            await self.usage.refresh()
            return {name: sums.get(name, 0.0) + self.usage.seconds_today(name) for name in names}
        return sums

    def ended(self, record: UsageRecord) -> None:
        """Record the usage of a call that has ended."""
        self.usage.write(record)
        if record.key:
            left_s = max(0.0, self.running.get(record.key, 0.0) - record.seconds)
            self.running = {**self.running, record.key: left_s}
            self.client.report(self._use())

    def _use(self, others: Mapping[str, float] = MappingProxyType({})) -> Use:
        used = {**others, **self.usage.seconds_here}
        for name, seconds in self.running.items():
            used[name] = used.get(name, 0.0) + seconds
        return Use(self.usage.day, tuple(used.items()))

    def check(self, caller: Caller, used: Mapping[str, float]) -> None:
        """Check that a caller may begin, or continue; ``used`` has the seconds that each key has used today.

        Raises:
            KeyRevokedError: its key is no longer in the file.
            UsageLimitError: its key has used its seconds of the day; the message has the numbers.
        """
        key = caller.key
        if key is None or self._keys is None:
            return
        if not self._keys.holds(key):
            raise KeyRevokedError(f"the key '{key.name}' is no longer valid")
        limit = self.limit_s(caller)
        if 0 < limit <= (used_s := used.get(key.name, 0.0)):
            raise UsageLimitError(
                f"the key '{key.name}' has used {used_s:.0f} of {limit} s today (UTC)",
                retry_after_s=self.usage.seconds_left(),
            )

    def _key_of(self, request: web.Request) -> KeyEntry | None:
        if self._keys is None:
            return None
        presented = presented_key(request.headers, request.query) or cookie_key(request)
        if presented is None:
            words = "an API key is needed: as 'Authorization: Bearer KEY'"
            raise unauthorised(request.path, words, code="missing_authorization")
        key = self._keys.find(presented)
        if key is None and PATHS.fullmatch(request.path):
            key = self._holder_of(self._keys, presented)
        if key is None:
            raise unauthorised(request.path, "this API key is not known here", code="invalid_api_key")
        return key

    def _holder_of(self, keys: KeyFile, presented: str) -> KeyEntry | None:
        """The API key that an ephemeral key was made with, while both are valid."""
        found = self.ephemeral.read(presented)
        key = None if found is None else keys.named(found.name)
        return key if found is not None and key is not None and self.ephemeral.is_of(found, key) else None


def unauthorised(path: str, words: str, *, code: str) -> web.HTTPUnauthorized:
    """A 401 with the header that names the authentication scheme; on OpenAI's paths the body has OpenAI's
    format.
    """
    headers = {"WWW-Authenticate": 'Bearer realm="antiphon"'}
    if OPENAI_PATH.match(path) is None:
        return web.HTTPUnauthorized(text=f"{words}\n", headers=headers)
    body = error_body(words, code=code)
    return web.HTTPUnauthorized(text=body, headers=headers, content_type="application/json")


def error_body(
    message: str, *, code: str | None, kind: str = "invalid_request_error", param: str | None = None
) -> str:
    """An error in the format of OpenAI's HTTP API."""
    return json.dumps({"error": {"message": message, "type": kind, "code": code, "param": param}}) + "\n"


class SessionLedger:
    """Counts the sessions of each key and each address in this process, and checks their limits."""

    def __init__(self, limits: Limits, client: SupervisorClient, *, proxies: Sequence[Network] = ()) -> None:
        """Start without sessions; ``client`` counts for the whole server.

        Callers whose address is one of the ``proxies`` have no limit by address.
        """
        self._limits, self._proxies = limits, proxies
        self._client = client
        self._numbers = itertools.count(1)
        self._by_key: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def hold(self, caller: Caller, *, rows: int = 0, extra: int = 0) -> AsyncIterator[None]:
        """Count one more session of this caller for the block; ``extra`` sessions beyond its limit are
        allowed.

        ``rows`` is the total number of rows, which determines the limit of an address.

        Raises:
            SessionLimitError: its key or address is at its limit; the message has the numbers.
            ServerFullError: the supervisor did not answer.
        """
        lease = next(self._numbers)
        counts = [(self._by_address, caller.address)]
        if caller.key is not None:
            counts.append((self._by_key, caller.key.name))
        try:
            refusal = await self._client.take(self._asked(lease, caller, rows, extra))
            if refusal:
                raise SessionLimitError(refusal)
            for count, name in counts:
                count[name] += 1
            try:
                yield
            finally:
                for count, name in counts:
                    count[name] -= 1
                    if not count[name]:
                        del count[name]
        finally:
            self._client.give_back(lease)

    @contextlib.asynccontextmanager
    async def hold_upload(self, caller: Caller) -> AsyncIterator[None]:
        """Count one more recording of this caller's address for the block.

        Raises:
            SessionLimitError: the address is at its limit; the message has the numbers.
            ServerFullError: the supervisor did not answer.
        """
        lease, limit = next(self._numbers), self._limits.max_uploads_per_address
        try:
            if refusal := await self._client.take(Take(lease, "", 0, caller.address, limit, "recordings")):
                raise SessionLimitError(refusal)
            yield
        finally:
            self._client.give_back(lease)

    def sessions_of_keys(self) -> list[tuple[str, int]]:
        """The number of sessions of each key, by its name."""
        return list(self._by_key.items())

    def of_key(self, name: str) -> int:
        """The number of sessions with the key of this name."""
        return self._by_key[name]

    def of_address(self, address: str) -> int:
        """The number of sessions from this address."""
        return self._by_address[address]

    @property
    def is_empty(self) -> bool:
        """Whether there is no session."""
        return not self._by_key and not self._by_address

    def _asked(self, lease: int, caller: Caller, rows: int, extra: int) -> Take:
        key_limit = 0
        if caller.key is not None:
            own = caller.key.sessions
            key_limit = own if own is not None else self._limits.max_sessions_per_key
        address_limit = self._limits.max_sessions_per_address
        if address_limit is None:
            share = max(LEAST_SHARE, round(rows * ADDRESS_SHARE))
            is_many = is_own(caller.address) or is_within(caller.address, self._proxies)
            address_limit = 0 if is_many else share
        address_limit = address_limit if caller.address else 0  # no limit without an address
        limits = [limit + extra if limit else 0 for limit in (key_limit, address_limit)]
        return Take(lease, caller.name, limits[0], caller.address, limits[1])
