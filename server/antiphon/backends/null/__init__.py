"""A backend without a model, whose every reply can be checked; see :mod:`antiphon.backends.null.backend`."""

from antiphon.backends.null.backend import LEVELS, NullBackend, NullFaults, NullRows, make
from antiphon.backends.null.stamp import STAMP_SAMPLES, Stamp, extend_history, hash_frames, read_stamp

__all__ = [
    "LEVELS",
    "STAMP_SAMPLES",
    "NullBackend",
    "NullFaults",
    "NullRows",
    "Stamp",
    "extend_history",
    "hash_frames",
    "make",
    "read_stamp",
]
