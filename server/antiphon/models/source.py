"""The source of a checkpoint's files: a local folder, or a repository of the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from antiphon.errors import CheckpointFormatError, CheckpointNotFoundError
from antiphon.models.hub import HUB_PREFIX, get_reference

FILE_PREFIX: Final = "file://"


class FileSource(Protocol):
    """Finds the files of one checkpoint by the names its configuration gives them."""

    @property
    def name(self) -> str:
        """What to call a checkpoint that does not say its own name."""
        ...

    @property
    def revision(self) -> str | None:
        """The commit everything comes from, where there is one."""
        ...

    def find(self, name: str) -> Path | None:
        """The file's path here, or None when the checkpoint has no such file."""
        ...

    def get(self, name: str) -> Path:
        """The file's path here. Raises CheckpointNotFoundError, with what to do about it."""
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of this machine.

    Names may lead out of it (``../echo/mimi.safetensors``), unless there is a ``bound``: the folder in which
    every file has to lie, links followed. ``beside`` is a second folder, read for what this one lacks.
    """

    root: Path
    bound: Path | None = None
    beside: Path | None = None

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.root.resolve().name

    @property
    def revision(self) -> str | None:
        """A folder has none."""
        return None

    def find(self, name: str) -> Path | None:
        """The file's path, or None when there is no such file. ``file://`` in front is tolerated.

        Raises:
            CheckpointFormatError: it lies outside of the bound.
        """
        name = name.removeprefix(FILE_PREFIX)
        path = self.root / name
        if self.bound is not None and not path.resolve().is_relative_to(self.bound.resolve()):
            raise outside(str(self.root), name)
        if self.beside is not None and not path.is_file():
            path = self.beside / name
        return path if path.is_file() else None

    def get(self, name: str) -> Path:
        """The file's path. Raises CheckpointNotFoundError when there is no such file."""
        path = self.find(name)
        if path is None:
            raise CheckpointNotFoundError(
                f"{self.root} has no file '{name}', which its configuration names: copy it there"
            )
        return path


def outside(folder: str, name: str) -> CheckpointFormatError:
    """The error for a file that a stranger's folder names and that is not in it."""
    return CheckpointFormatError(
        f"{folder} names the file '{name}', which lies outside of it; copy it there, "
        "or serve with --outside-files if you trust the folder"
    )


def resolve(source: FileSource, name: str) -> Path:
    """The path of a file the checkpoint must have; ``hf://owner/repo/file`` is one of another repository.

    Raises CheckpointNotFoundError when it is not there, or the hub cannot be reached, and
    CheckpointFormatError when it lies outside of a folder that is to stay in itself.
    """
    if name.startswith(HUB_PREFIX):
        if isinstance(source, Folder) and source.bound is not None:
            raise outside(str(source.root), name)
        return get_reference(name)
    return source.get(name)
