"""All fuzz targets, by name."""

from __future__ import annotations

from lab.tools.fuzz import files, moved, seam, sound, wire

TARGETS = {**wire.TARGETS, **sound.TARGETS, **files.TARGETS, **seam.TARGETS, **moved.TARGETS}
