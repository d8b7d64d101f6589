"""A folder that appears when it is complete, and not before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from antiphon.errors import ConfigError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import MANIFEST_NAME

Approve: TypeAlias = Callable[[Checkpoint], None]
"""Called with what is complete but not in its place yet; raises what keeps it from getting there."""


def approve_all(checkpoint: Checkpoint) -> None:
    """Let anything appear."""


def check_target(out: Path, *, source: Path, force: bool) -> None:
    """Check that a folder may be written.

    Raises:
        ConfigError: it exists and ``force`` is not given, it is no checkpoint of ours, or it holds the
            model itself.
    """
    if not out.exists():
        return
    if out.resolve() == source.resolve():
        raise ConfigError(f"{out} is the model itself; choose another folder")
    if not force:
        raise ConfigError(f"{out} exists; give --force to replace it")
    if not out.is_dir() or (any(out.iterdir()) and not (out / MANIFEST_NAME).is_file()):
        raise ConfigError(f"{out} is no checkpoint (it holds no {MANIFEST_NAME}), so it is not replaced")


@contextmanager
def appearing(out: Path, *, room_bytes: int) -> Iterator[Path]:
    """A hidden folder next to ``out`` that takes its place, and its name, when the block ends well.

    Raises:
        ConfigError: the disk has no room for ``room_bytes``, or cannot be written.
    """
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    old = part.with_suffix(".old")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(out.parent).free
        if free_bytes < room_bytes:
            raise ConfigError(f"{out} needs {room_bytes:,} bytes, the disk has {free_bytes:,}")
        part.mkdir()
        yield part
        if out.exists():
            out.rename(old)
        part.rename(out)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
