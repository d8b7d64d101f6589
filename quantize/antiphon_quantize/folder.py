"""A folder that appears only when it is complete; written in one run or over several.

A journal has a line for each finished part, so the same command can resume a run that was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from antiphon.errors import ConfigError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import MANIFEST_NAME

Approve: TypeAlias = Callable[[Checkpoint], None]
"""Called with the complete folder before it replaces the target; raises to prevent that."""


def approve_all(checkpoint: Checkpoint) -> None:
    """Accept any checkpoint."""


def check_target(out: Path, *, source: Path, force: bool) -> None:
    """Check that a folder may be written.

    Raises:
        ConfigError: the folder exists and ``force`` is not given, is not a checkpoint of this project, or
            contains ``source``.
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
    """A hidden folder next to ``out`` that replaces it when the block succeeds.

    Raises:
        ConfigError: the disk has no room for ``room_bytes``, or is not writable.
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


JOURNAL_NAME = "journal.jsonl"


class Journal:
    """Records the complete parts of ``folder``, by name, from this run and earlier ones."""

    def __init__(self, folder: Path, file: BinaryIO, notes: dict[str, Mapping[str, Any]]) -> None:
        """Continue after ``notes``, at the end of ``file``."""
        self.folder, self.notes = folder, notes
        self._file = file

    def note(self, name: str, **values: Any) -> None:
        """Record on disk that the part ``name`` is complete, with ``values`` to keep."""
        self._file.write(json.dumps({"name": name, **values}).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.notes[name] = values


def part_of(out: Path) -> Path:
    """The folder that holds an unfinished ``out``."""
    return out.with_name(f"{out.name}.part")


@contextmanager
def resuming(out: Path, key: Mapping[str, str], *, room_bytes: int) -> Iterator[Journal]:
    """The journal of ``OUT.part``, which is new or from a stopped run. ``OUT`` appears when the block
    succeeds.

    ``key`` contains all inputs of the content. If the block fails, the folder remains for a resumed run,
    unless it is empty.

    Raises:
        ConfigError: another run is writing the folder, or has written it with another key; or the disk
            has no room for ``room_bytes``, or is not writable.
    """
    part = part_of(out)
    try:
        is_new = not (part / JOURNAL_NAME).exists()
        if is_new and part.is_dir() and any(part.iterdir()):
            raise ConfigError(f"{part} is in the way: it holds files, but no journal of a stopped run")
        part.mkdir(parents=True, exist_ok=True)
        with (part / JOURNAL_NAME).open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(f"{part} is being written by another run") from error
            notes = _earlier(part, file, key)
            free_bytes = shutil.disk_usage(part).free
            if is_new and free_bytes < room_bytes:
                shutil.rmtree(part)
                raise ConfigError(f"{out} needs {room_bytes:,} bytes, the disk has {free_bytes:,}")
            try:
                journal = Journal(part, file, notes)
                yield journal
            except BaseException:
                if not notes:
                    shutil.rmtree(part, ignore_errors=True)
                raise
            _take_place(part, out)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}") from error


def _earlier(part: Path, file: BinaryIO, key: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """The notes of earlier runs; the file is positioned at the end of the last complete line."""
    file.seek(0)
    lines = file.read().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        file.truncate(sum(map(len, lines[:-1])))
        lines.pop()
    entries = [json.loads(line) for line in lines]
    if not entries:
        file.write(json.dumps({"key": dict(key)}).encode() + b"\n")
        file.flush()
        return {}
    found = entries[0].get("key", {})
    if different := [name for name, value in key.items() if found.get(name) != value]:
        raise ConfigError(
            f"{part} is of a run with another {' and '.join(different)}; remove it, or choose another OUT"
        )
    return {entry.pop("name"): entry for entry in entries[1:]}


def _take_place(part: Path, out: Path) -> None:
    """Move ``part`` to ``out``, and delete the previous content."""
    old = out.with_name(f".{out.name}.{os.getpid()}.old")
    if out.exists():
        out.rename(old)
    part.rename(out)
    (out / JOURNAL_NAME).unlink()
    shutil.rmtree(old, ignore_errors=True)
