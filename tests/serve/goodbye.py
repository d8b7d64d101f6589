"""The end of TLS connections, as tests see it."""

from __future__ import annotations

from typing import Final

import pytest

TLS_GOODBYE: Final = pytest.mark.filterwarnings("ignore:unclosed resource <TCPTransport:ResourceWarning")
"""A client's TLS connection may still wait for its server's goodbye when the loop ends, which closes it.

As an error, uvloop's warning would interrupt that closing.
"""
