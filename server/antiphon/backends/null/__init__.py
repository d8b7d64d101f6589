"""A backend without a model, whose every reply can be checked; see :mod:`antiphon.backends.null.backend`."""

from antiphon.backends.null.backend import NullBackend, NullFaults, make
from antiphon.backends.null.stamp import STAMP_SAMPLES, Stamp, extend_history, hash_frames, read_stamp

__all__ = [
    "STAMP_SAMPLES",
    "NullBackend",
    "NullFaults",
    "Stamp",
    "extend_history",
    "hash_frames",
    "make",
    "read_stamp",
]
