"""TLS for tests: certificates, and the end of connections."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

TLS: Final = Path(__file__).parent / "tls"
"""Two certificates with their keys."""

TLS_GOODBYE: Final = pytest.mark.filterwarnings("ignore:unclosed resource <TCPTransport:ResourceWarning")
"""A client's TLS connection may still wait for its server's goodbye when the loop ends, which closes it.

As an error, uvloop's warning would interrupt that closing.
"""
