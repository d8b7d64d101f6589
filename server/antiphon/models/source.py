"""The names of models, and the source of a checkpoint's files: a local folder, or a hub repository.

From the hub only the needed files are fetched, at one commit; cached files work offline. ``huggingface_hub``
is imported only when it is needed. Its cache and its environment variables (``HF_HOME``, ``HF_HUB_OFFLINE``,
``HF_TOKEN``) apply unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Final, Protocol

from antiphon.errors import AntiphonError, CheckpointFormatError, CheckpointNotFoundError, MissingExtraError

BUILTIN: Final = ("tiny", "tiny-stt", "tiny-tts", "echo")
"""The built-in models, each a folder of ``antiphon/assets``."""

DEFAULT_MODEL: Final = "tiny"


HUB_PREFIX: Final = "hf://"
_CONFIGURATION: Final = ("config.json", "antiphon.json")


@dataclass(frozen=True, slots=True)
class Repository:
    """One commit of a repository on the hub, and its files in the local cache.

    ``revision`` is the full commit hash, ``snapshot`` the cache's folder for the commit.
    """

    repo: str
    revision: str
    snapshot: Path

    @property
    def name(self) -> str:
        """The repository's name without its owner."""
        return self.repo.rpartition("/")[2]

    def find(self, name: str) -> Path | None:
        """The file's path in the cache, fetched if necessary; None if the repository has no such file.

        If the hub cannot be reached, a file that is not cached counts as missing.
        """
        if name in _CONFIGURATION and not (self.snapshot / name).is_file():
            return None  # it was requested when the repository was opened
        try:
            return self._fetch(name)
        except _errors().EntryNotFoundError:  # also raised for "not cached, and offline"
            return None

    def get(self, name: str) -> Path:
        """The file's path in the cache, fetched if necessary. Raises CheckpointNotFoundError."""
        errors = _errors()
        try:
            return self._fetch(name)
        except errors.LocalEntryNotFoundError as error:
            raise CheckpointNotFoundError(
                f"{self.repo} needs '{name}', which is not in the cache, and the hub cannot be reached; "
                f"when online, run: hf download {self.repo} {name} --revision {self.revision}"
            ) from error
        except errors.EntryNotFoundError as error:
            raise CheckpointNotFoundError(
                f"{self.repo} at {self.revision} has no file '{name}', which its configuration names"
            ) from error

    def _fetch(self, name: str) -> Path:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "://" in name:
            raise CheckpointFormatError(f"{self.repo} names the file '{name}', which lies outside of it")
        cached = self.snapshot / path
        if cached.is_file():
            return cached
        with _explained(self.repo, self.revision):
            return Path(_client().hf_hub_download(self.repo, name, revision=self.revision))


def open_repository(ref: str) -> Repository:
    """Find ``hf://owner/repo[@revision]``, fetch its configuration, and pin it to its commit.

    Raises CheckpointFormatError for a malformed name, MissingExtraError without the hub's client, and
    CheckpointNotFoundError if the repository does not exist or cannot be reached.
    """
    repo, _, revision = ref.removeprefix(HUB_PREFIX).partition("@")
    if repo.count("/") != 1 or not all(repo.split("/")):
        raise CheckpointFormatError(f"'{ref}' is not of the form {HUB_PREFIX}owner/repo[@revision]")
    with _explained(repo, revision or "main"):
        try:
            snapshot = Path(
                _client().snapshot_download(
                    repo, revision=revision or None, allow_patterns=list(_CONFIGURATION)
                )
            )
        except _errors().LocalEntryNotFoundError as error:
            raise CheckpointNotFoundError(
                f"{HUB_PREFIX}{repo} is not in the cache, and the hub cannot be reached ({_reason(error)}); "
                f"when online, run: hf download {repo}"
            ) from error
    return Repository(repo, snapshot.name, snapshot)


def get_reference(name: str) -> Path:
    """The file that ``hf://owner/repo/path[@revision]`` refers to, in another repository's configuration."""
    owner, _, rest = name.removeprefix(HUB_PREFIX).partition("/")
    repo, _, path = rest.partition("/")
    path, at, revision = path.partition("@")
    if not path:
        raise CheckpointFormatError(f"'{name}' is not of the form {HUB_PREFIX}owner/repo/file")
    return open_repository(f"{HUB_PREFIX}{owner}/{repo}{at}{revision}").get(path)


@contextmanager
def _explained(repo: str, revision: str) -> Iterator[None]:
    """Convert the client's errors about whole repositories to CheckpointNotFoundError."""
    errors = _errors()
    try:
        yield
    except (AntiphonError, errors.EntryNotFoundError):
        raise  # about one file: the caller explains
    except errors.GatedRepoError as error:
        raise CheckpointNotFoundError(
            f"{repo} is gated: accept its terms on its page on the hub, then run: hf auth login"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointNotFoundError(f"{repo} has no revision '{revision}'") from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointNotFoundError(
            f"the hub has no repository '{repo}' that you may read; if it is private, run: hf auth login"
        ) from error
    except errors.HFValidationError as error:
        raise CheckpointFormatError(f"'{repo}' cannot be a repository: {_reason(error)}") from error
    except Exception as error:  # errors of its transport: requests or httpx, by version
        raise CheckpointNotFoundError(f"fetching from {repo} failed: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The innermost cause of an error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _client() -> ModuleType:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError("a model from the hub", extra="torch", module="huggingface_hub") from error
    return huggingface_hub


def _errors() -> ModuleType:
    _client()
    from huggingface_hub import errors

    return errors


FILE_PREFIX: Final = "file://"


class FileSource(Protocol):
    """Finds the files of one checkpoint by their names in its configuration."""

    @property
    def name(self) -> str:
        """The default name of a checkpoint."""

    @property
    def revision(self) -> str | None:
        """The commit of all files, if there is one."""

    def find(self, name: str) -> Path | None:
        """The local path of the file, or None if the checkpoint has no such file."""

    def get(self, name: str) -> Path:
        """The local path of the file. Raises CheckpointNotFoundError, with advice."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of a checkpoint in a local folder.

    Names may point outside of the folder (``../echo/mimi.safetensors``), unless there is a ``bound``: the
    folder that must contain every file, with links followed. ``beside`` is a second folder, which is searched
    for files that the first one lacks.
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
        """None, since a folder has no revision."""
        return None

    def find(self, name: str) -> Path | None:
        """The file's path, or None if there is no such file. A prefix ``file://`` is ignored.

        Raises:
            CheckpointFormatError: the file is outside of ``bound``.
        """
        name = name.removeprefix(FILE_PREFIX)
        path = self.root / name
        if self.bound is not None and not path.resolve().is_relative_to(self.bound.resolve()):
            raise outside(str(self.root), name)
        if self.beside is not None and not path.is_file():
            path = Path(os.path.normpath(self.beside / name))  # it may lack a folder that the name leaves
        return path if path.is_file() else None

    def get(self, name: str) -> Path:
        """The file's path. Raises CheckpointNotFoundError if there is no such file."""
        path = self.find(name)
        if path is None:
            raise CheckpointNotFoundError(
                f"{self.root} has no file '{name}', which its configuration names: copy it there"
            )
        return path


def outside(folder: str, name: str) -> CheckpointFormatError:
    """The error for a file outside of an untrusted folder."""
    return CheckpointFormatError(
        f"{folder} names the file '{name}', which lies outside of it; copy it there, "
        "or serve with --outside-files if you trust the folder"
    )


def resolve(source: FileSource, name: str) -> Path:
    """The path of a required file; ``hf://owner/repo/file`` names a file of another repository.

    Raises CheckpointNotFoundError if it does not exist or the hub cannot be reached, and
    CheckpointFormatError if it is outside of a confined folder.
    """
    if name.startswith(HUB_PREFIX):
        if isinstance(source, Folder) and source.bound is not None:
            raise outside(str(source.root), name)
        return get_reference(name)
    return source.get(name)
