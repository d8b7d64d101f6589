"""The voices of a tts model: the files under one folder, by name.

Kyutai's repository of voices has embeddings as ``NAME.SIGNATURE@EPOCH.safetensors``, where the part after the
name is the ``model_id`` of their model; a plain ``NAME.safetensors`` works too. A Pocket-TTS model stores the
state of a voice in such files, and accepts recordings (``NAME.wav``) if its weights can encode them. Names
come from a query, so they are looked up in the folder's list and never joined to a path.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from antiphon.audio.files import read_audio
from antiphon.errors import AudioError, CheckpointFormatError, ConfigError, UnsupportedError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.conditioning import SpeakerShape, read_speaker
from antiphon.models.pocket_shape import PocketShape
from antiphon.models.prompt import Prompt
from antiphon.models.spec import ModelSpec

KEPT_BYTES: Final = 64 * 2**20
"""Maximum bytes of voices kept in memory: hundreds of voices for tts-1.6b, tens for Pocket-TTS. The last used
voice is always kept.
"""

MAX_NOTED_NAMES: Final = 64
"""Number of unknown names that are remembered, so that each is logged once. It is limited, because callers
may send any names.
"""

SUFFIX: Final = ".safetensors"
RECORDED: Final = ".wav"

Reader: TypeAlias = Callable[[Path], Prompt]


class TtsVoiceFolder:
    """The voices under ``folder`` for one model; one thread loads them, and another thread may note names."""

    def __init__(self, folder: Path | None, checkpoint: Checkpoint, readers: Mapping[str, Reader]) -> None:
        """List the folder, if there is one; a voice is read when it is first requested.

        ``readers`` read a voice's file by its suffix.

        Raises:
            ConfigError: the folder does not exist.
        """
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"voices = {str(folder)!r} is no folder")
        model_id = checkpoint.generation.get("model_id") or {}
        own = f".{model_id.get('sig')}@{model_id.get('epoch')}{SUFFIX}"
        self._readers = readers
        self._files = {} if folder is None else _find(folder, own, tuple(readers))
        self._kept: OrderedDict[str, Prompt] = OrderedDict()
        self._noted: set[str] = set()

    def names(self) -> list[str]:
        """The names of all voices, in order; the first is the default."""
        return list(self._files)

    def choose(self, name: str | None) -> str | None:
        """The voice for a caller who requests ``name``: the voice of this name, or else the first voice; None
        without voices.

        An unknown name is not an error, as in Kyutai's server, because clients send names from other servers.
        """
        return name if name in self._files else next(iter(self._files), None)

    def note_unknown(self, name: str) -> bool:
        """Note an unknown name; returns whether it is new, and one of the first ``MAX_NOTED_NAMES``."""
        is_new = name not in self._noted and len(self._noted) < MAX_NOTED_NAMES
        if is_new:
            self._noted.add(name)
        return is_new

    def load(self, name: str) -> Prompt:
        """The voice of this name, one of :meth:`names`.

        Raises:
            CheckpointFormatError: its file cannot be used.
        """
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        path = self._files[name]
        try:
            voice = self._readers[path.suffix](path)
        except (UnsupportedError, AudioError) as error:
            raise CheckpointFormatError(f"{path.name}: {error}") from error
        self._kept[name] = voice
        while len(self._kept) > 1 and sum(it.bytes for it in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        return voice


def _find(folder: Path, own: str, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Files by name, in order. Of several files with one name, the one made for this model is used."""
    found: dict[str, Path] = {}
    paths = [path for suffix in reversed(suffixes) for path in sorted(folder.rglob(f"*{suffix}"))]
    for path in (*(it for it in paths if "@" not in it.name), *(it for it in paths if it.name.endswith(own))):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            name = path.relative_to(folder).as_posix()
            found[name.removesuffix(own).removesuffix(path.suffix)] = path
    return dict(sorted(found.items()))


def find_tts_voices(folder: str | None, checkpoint: Checkpoint) -> TtsVoiceFolder | None:
    """The configured folder, or else a folder ``voices`` next to the model; None for a model with one voice.

    Raises:
        ConfigError: the configured folder does not exist.
    """
    readers = _readers(checkpoint.spec) if not checkpoint.spec.kind.takes_audio else {}
    if not readers:
        return None
    if folder is not None:
        return TtsVoiceFolder(Path(folder), checkpoint, readers)
    beside = checkpoint.root / "voices"
    return TtsVoiceFolder(beside if beside.is_dir() else None, checkpoint, readers)


def _readers(spec: ModelSpec) -> dict[str, Reader]:
    """The readers of a model's voices, by suffix."""
    pocket = PocketShape.of(spec)
    if pocket is not None:
        recorded = {RECORDED: lambda path: pocket.recorded(read_audio(path, spec.sample_rate), spec)}
        return {SUFFIX: pocket.read_voice, **(recorded if pocket.clones else {})}
    shape = SpeakerShape.of(spec)
    return {} if shape is None else {SUFFIX: lambda path: shape.prompt(read_speaker(path))}
