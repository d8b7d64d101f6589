"""The files that options name, checked before any model is loaded; imports little, for the supervisor."""

from __future__ import annotations

import os
from pathlib import Path

from antiphon.config import ServerConfig
from antiphon.errors import ConfigError
from antiphon.serve.access.keys import KeyFile
from antiphon.serve.access.shared_secret import SharedSecret
from antiphon.serve.hosting.ports import port_tls


def check_files(config: ServerConfig) -> None:
    """Check every file and folder that an option names: those read by reading them, those written by access.

    Raises:
        ConfigError: one cannot be used; the message names the option and the file.
    """
    port_tls(config)
    if config.hand_over_secret is not None:
        SharedSecret.read(Path(config.hand_over_secret))
    if config.api_keys is not None:
        KeyFile(Path(config.api_keys))
    for entry in config.served:
        if entry.voices is not None and not Path(entry.voices).is_dir():
            raise ConfigError(f"voices = {entry.voices!r}: there is no such folder")
    if config.usage is not None:
        _check_written("usage", Path(config.usage))
    if config.trace:
        _check_written("trace_file", Path(config.trace_file))
    if config.record is not None:
        folder = Path(config.record)  # it is made when it is not there
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            raise ConfigError(f"record = {config.record!r}: {nearest} is no folder that can be written to")


def _check_written(option: str, path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"{option} = '{path}': it is a folder, a file is needed")
    if not (os.access(path, os.W_OK) if path.exists() else os.access(path.parent, os.W_OK | os.X_OK)):
        raise ConfigError(f"{option} = '{path}': it cannot be written")
