"""The address of a server, in any notation: ``http://``, ``ws://``, ``host:port`` or only a port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from antiphon.errors import ConfigError
from antiphon.install import antiphon_command
from antiphon.protocol.kyutai import PATH as STT_PATH
from antiphon.protocol.kyutai_tts import PATH as TTS_PATH

DEFAULT_PORT = 8998
_SECURE = {"http": False, "ws": False, "https": True, "wss": True}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's host, port, path prefix, and whether it uses TLS."""

    host: str
    port: int
    is_secure: bool = False
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Read an address; the path of one of the sockets at its end, such as ``/api/chat``, is removed.

        Raises:
            ConfigError: the scheme or the port is invalid, or there is no host.
        """
        text = text.strip()
        if text.isdigit():
            text = f"127.0.0.1:{text}"
        scheme, separator, _ = text.partition("://")
        if not separator:
            scheme, text = "http", f"http://{text}"
        if scheme.lower() not in _SECURE:
            raise ConfigError(f"cannot use '{scheme}://' in {text!r}: write http, https, ws or wss")
        parts = urlsplit(text)
        try:
            port = parts.port
        except ValueError:
            raise ConfigError(f"the port in {text!r} is not a number from 0 to 65535") from None
        if not parts.hostname:
            raise ConfigError(f"no host in {text!r}: write for example http://127.0.0.1:{DEFAULT_PORT}")
        is_secure = _SECURE[scheme.lower()]
        implied = (443 if is_secure else 80) if separator else DEFAULT_PORT
        prefix = parts.path.rstrip("/")
        for path in ("/api/chat", STT_PATH, TTS_PATH):
            prefix = prefix.removesuffix(path)
        return cls(host=parts.hostname, port=port or implied, is_secure=is_secure, prefix=prefix)

    @property
    def http(self) -> str:
        """Base URL for plain requests, without a trailing slash."""
        return f"{'https' if self.is_secure else 'http'}://{self._netloc}{self.prefix}"

    def chat(self, query: Mapping[str, str]) -> str:
        """URL of the WebSocket ``/api/chat`` with the parameters ``query``."""
        return self._socket("/api/chat", query)

    def speech(self, query: Mapping[str, str]) -> str:
        """URL of the speech-to-text WebSocket with the parameters ``query``."""
        return self._socket(STT_PATH, query)

    def tts(self, query: Mapping[str, str]) -> str:
        """URL of the text-to-speech WebSocket with the parameters ``query``."""
        return self._socket(TTS_PATH, query)

    def _socket(self, path: str, query: Mapping[str, str]) -> str:
        base = f"{'wss' if self.is_secure else 'ws'}://{self._netloc}{self.prefix}{path}"
        return f"{base}?{urlencode(query)}" if query else base

    @property
    def _netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def serve_command(self) -> str:
        """The command that would start a server at this address, on this machine or another."""
        port = "" if self.port == DEFAULT_PORT else f" --port {self.port}"
        is_here = self.host in ("127.0.0.1", "localhost")
        return antiphon_command(f"serve{port}") if is_here else f"antiphon serve --host {self.host}{port}"
