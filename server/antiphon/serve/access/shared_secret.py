"""The secret of workers that hand calls over: it signs requests between them, headers first, then the body.

A request begins with a signature over its method, path, length, time, a nonce and the name of the receiving
worker. The server therefore reads no body of an untrusted client, and no other worker accepts the request.
The body ends with 32 bytes that sign the body and the first signature.

A secret may be a certificate with its key (PEM): workers then trust only that certificate, for any host name,
because only they have its key.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from antiphon.errors import ConfigError, HandOverError
from antiphon.supervisor.shared import FRESH_S

HEADER: Final = "X-Antiphon-Signature"
SCHEME: Final = "v2"
TAG_BYTES: Final = 32
MIN_BYTES: Final = 16
"""Minimum bytes of a secret, the size of a random token."""

CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
END: Final = b"-----END CERTIFICATE-----"
PRIVATE_KEY: Final = b"PRIVATE KEY-----"
MAKE_CERTIFICATE: Final = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=workers "
    "-keyout hand-over.pem -out hand-over.pem"
)


@dataclass(frozen=True, slots=True)
class SharedSecret:
    """The secret that workers share to hand calls over to each other."""

    key: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> SharedSecret:
        """Read the secret in a file, without white space around it.

        Raises:
            ConfigError: the file cannot be read, is too short, or has only a certificate, which is public.
        """
        try:
            key = path.read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"hand_over_secret: cannot read {path}: {error.strerror}") from error
        if len(key) < MIN_BYTES:
            raise ConfigError(
                f"hand_over_secret: {path} has {len(key)} bytes, {MIN_BYTES} or more are needed; "
                "make one with: openssl rand -hex 32"
            )
        if CERTIFICATE in key and PRIVATE_KEY not in key:
            raise ConfigError(
                f"hand_over_secret: {path} contains a certificate without its private key; a "
                f"certificate is public: make both with: {MAKE_CERTIFICATE}"
            )
        return cls(key)

    def client_tls(self) -> ssl.SSLContext:
        """TLS settings of requests to another worker. If there are several certificates, the first is
        presented.

        Raises:
            ConfigError: its certificate is invalid.
        """
        if CERTIFICATE not in self.key:
            return ssl.create_default_context()  # SSL_CERT_FILE names another authority
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trusted itself, with any signature
        _, begin, rest = self.key.partition(CERTIFICATE)
        own = begin + b"".join(rest.partition(END)[:2])
        try:
            context.load_verify_locations(cadata=own.decode("ascii"))
        except (ssl.SSLError, UnicodeError) as error:
            raise ConfigError(f"hand_over_secret: its certificate cannot be used: {error}") from error
        return context

    def sign(self, method: str, path: str, length: int, now_s: float, *, worker: str) -> str:
        """The header of a request whose body has ``length`` bytes before its tag, at ``now_s`` since 1970.

        ``worker`` is the name of the receiver, which a GET returns; any worker answers a GET.
        """
        nonce = secrets.token_hex(8)
        signature = self._of(method, path, length, f"{now_s:.3f}", nonce, worker)
        return f"{SCHEME} {now_s:.3f} {nonce} {signature}"

    def check(self, header: str, method: str, path: str, length: int, now_s: float, *, worker: str) -> None:
        """Check the header of a request to the worker of this name.

        Raises:
            HandOverError: the header was made with another secret, for another worker, or too long ago.
        """
        scheme, _, rest = header.partition(" ")
        time_s, _, rest = rest.partition(" ")
        nonce, _, signature = rest.partition(" ")
        wanted = self._of(method, path, length, time_s, nonce, worker)
        if scheme != SCHEME or not hmac.compare_digest(wanted.encode(), signature.encode(errors="replace")):
            raise HandOverError(
                f"the signature is not one for the worker {worker!r} and its secret (hand_over_secret)"
            )
        apart_s = abs(float(time_s) - now_s)  # signed, so it is a number
        if not math.isfinite(apart_s) or apart_s > FRESH_S:
            raise HandOverError(
                f"the request is {apart_s:.0f} s old, or the clocks differ; the limit is {FRESH_S:g} s"
            )

    def tag(self, header: str) -> hmac.HMAC:
        """A hash that must be updated with the body, and whose digest follows the body."""
        return hmac.new(self.key, b"body " + header.encode(), hashlib.sha256)

    def _of(self, method: str, path: str, length: int, time_s: str, nonce: str, worker: str) -> str:
        target = "" if method == "GET" else worker
        text = "\n".join(("request", SCHEME, method, path, str(length), time_s, nonce, target))
        return hmac.new(self.key, text.encode(errors="replace"), hashlib.sha256).hexdigest()
