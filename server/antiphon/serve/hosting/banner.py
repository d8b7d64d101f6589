"""The text in the terminal when the server is ready."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon import __version__
from antiphon.config import ServerConfig


def banner(models: Sequence[str], config: ServerConfig, port: int, front_ends: int = 0) -> str:
    """The models, in a line each, and where to call."""
    scheme = "https" if config.tls_cert else "http"
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host  # an address that answers
    shown = f"[{host}]" if ":" in host else host
    processes = f", {front_ends} front-end process{'es' if front_ends > 1 else ''}" if front_ends else ""
    lines = [f"antiphon {__version__}: {model}{processes}" for model in models]
    return "\n".join([*lines, f"{scheme}://{shown}:{port}   Ctrl-C stops"])
