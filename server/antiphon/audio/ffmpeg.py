"""Imports PyAV, and FFmpeg with it, when it is needed.

The import takes 40 ms of CPU and 17 MB of memory. A server of a duplex model needs it for voices only.
"""

from __future__ import annotations

from types import ModuleType


def load_av() -> ModuleType:
    """The package ``av``; the first call imports it."""
    import av

    return av
