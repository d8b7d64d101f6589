"""Chooses the new calls that go to the canary."""

from __future__ import annotations

import hashlib
from typing import Final

POINT_BYTES: Final = 6
"""Bytes of a digest, few enough for a float to be exact."""


def caller_digest(canary: str, caller: str) -> str:
    """A digest of a caller's key or address, different for each canary."""
    return hashlib.blake2b(f"{canary}\n{caller}".encode(), digest_size=16).hexdigest()


def point_of(digest: str) -> float:
    """Map a digest to a number from 0 to 1. A caller below a small share is also below every larger share."""
    return int(digest[: 2 * POINT_BYTES], 16) / 256**POINT_BYTES
