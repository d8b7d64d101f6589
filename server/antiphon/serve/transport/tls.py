"""TLS from the files of the configuration."""

from __future__ import annotations

import ssl

from antiphon.errors import ConfigError


def tls_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """TLS for the two PEM files, or None without them.

    Raises:
        ConfigError: they cannot be read, or do not belong together.
    """
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"cannot use {certificate} with {key}: {error}") from error
    return context
