"""The voices of a tts model: the files of embeddings under one folder, by name.

Kyutai's repository of voices has them as ``NAME.SIGNATURE@EPOCH.safetensors``, the part behind the name being
``model_id`` of the model they were made for; a plain ``NAME.safetensors`` will do too. Names come from a
query, so they are looked up in the folder's own list and never joined to a path.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from antiphon.errors import CheckpointFormatError, ConfigError, ProtocolError, UnsupportedError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.prompt import Prompt
from antiphon.models.speaker import SpeakerShape, read_speaker
from antiphon.models.spec import PipelineKind

KEPT_VOICES: Final = 64
"""Voices kept in memory: a quarter of a megabyte each."""

SHOWN_VOICES: Final = 10
"""Of all names, how many an error lists."""

SUFFIX: Final = ".safetensors"


class SpeakerFolder:
    """The voices under ``folder``, for one model. May be asked from any thread."""

    def __init__(self, folder: Path | None, checkpoint: Checkpoint, shape: SpeakerShape) -> None:
        """Look at the folder, if there is one; voices are read when they are first asked for.

        Raises:
            ConfigError: there is no such folder.
        """
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"voices = {str(folder)!r} is no folder")
        model_id = checkpoint.generation.get("model_id") or {}
        own = f".{model_id.get('sig')}@{model_id.get('epoch')}{SUFFIX}"
        self.shape = shape
        self._files = {} if folder is None else _find(folder, own)
        self._kept: OrderedDict[str, Prompt] = OrderedDict()
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """The names of all voices, in order; the first is who speaks when nobody is named."""
        return list(self._files)

    def load(self, name: str | None) -> Prompt | None:
        """The voice of this name, or the first; None where there are none at all: then nobody's speaks.

        Raises:
            ProtocolError: there is no such voice; the message lists some of those there are.
            CheckpointFormatError: its file cannot be used.
        """
        if not self._files:
            return None
        name = next(iter(self._files)) if name is None else name
        if name not in self._files:
            known = list(self._files)
            more = f" and {len(known) - SHOWN_VOICES} more" if len(known) > SHOWN_VOICES else ""
            listed = ", ".join(known[:SHOWN_VOICES]) + more
            raise ProtocolError(f"there is no voice {name[:80]!r} here; there are: {listed}")
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        try:
            voice = self.shape.prompt(read_speaker(self._files[name]))
        except UnsupportedError as error:
            raise CheckpointFormatError(f"{self._files[name].name}: {error}") from error
        with self._lock:
            self._kept[name] = voice
            if len(self._kept) > KEPT_VOICES:
                self._kept.popitem(last=False)
        return voice


def _find(folder: Path, own: str) -> dict[str, Path]:
    """Files by name, in order. Where one name has several, the one made for this model is meant."""
    found: dict[str, Path] = {}
    paths = sorted(folder.rglob(f"*{SUFFIX}"))
    for path in (*(it for it in paths if "@" not in it.name), *(it for it in paths if it.name.endswith(own))):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            name = path.relative_to(folder).as_posix()
            found[name.removesuffix(own).removesuffix(SUFFIX)] = path
    return dict(sorted(found.items()))


def find_speakers(folder: str | None, checkpoint: Checkpoint) -> SpeakerFolder | None:
    """The configured folder, else one called ``voices`` beside the model; None for a model of one voice.

    Raises:
        ConfigError: the configured folder is not there.
    """
    shape = SpeakerShape.of(checkpoint.spec) if checkpoint.spec.kind is PipelineKind.TTS else None
    if shape is None:
        return None
    if folder is not None:
        return SpeakerFolder(Path(folder), checkpoint, shape)
    beside = checkpoint.root / "voices"
    return SpeakerFolder(beside if beside.is_dir() else None, checkpoint, shape)
