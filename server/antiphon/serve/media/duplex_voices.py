"""The voices of a server: the files of one folder, by name.

There are two kinds: recordings (WAV, FLAC, MP3, Ogg), and ``.pt`` files as PersonaPlex publishes them, which
hold the model's embeddings of a voice. Names come from a query, so they are looked up in the folder's list
and never joined to a path.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final

import numpy as np

from antiphon.audio.files import read_audio
from antiphon.audio.loudness import normalise
from antiphon.errors import CheckpointFormatError, ConfigError, ProtocolError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.prompt import VoicePrompt
from antiphon.models.spec import LMSpec, ModelSpec
from antiphon.models.tensor_file import read_tensors

EMBEDDED: Final = ".pt"
SUFFIXES: Final = (EMBEDDED, ".wav", ".flac", ".mp3", ".ogg", ".opus")
"""Suffixes of voices; if files differ only in the suffix, the first suffix in this list has priority."""

LOUDNESS_LUFS: Final = -24.0
"""The loudness that PersonaPlex gives a recorded voice."""

MAX_NAME: Final = 80
"""Maximum number of characters of a requested voice's name in the log and in a response."""

KEPT_VOICES: Final = 32
"""Voices kept in memory: a few megabytes each."""


class VoiceFolder:
    """The voices in ``folder`` for one model; one thread loads them."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        """List the folder; a voice is read when it is first requested.

        Raises:
            ConfigError: the folder does not exist.
        """
        if not folder.is_dir():
            raise ConfigError(f"voices = {str(folder)!r} is no folder")
        self._folder, self._spec = folder, spec
        self._kept: OrderedDict[tuple[Path, int], VoicePrompt] = OrderedDict()

    def names(self) -> list[str]:
        """The names of all voices, without their suffixes, in order."""
        return sorted({path.stem for path in self._files()})

    def load(self, name: str) -> VoicePrompt:
        """Load the voice of this name, with or without its suffix.

        Raises:
            ProtocolError: the voice does not exist; the message lists the voices. AudioError,
            CheckpointFormatError: the voice's file cannot be used.
        """
        files = [path for path in self._files() if name in (path.name, path.stem)]
        if not files:
            known = ", ".join(self.names()) or "none"
            raise ProtocolError(f"there is no voice {name[:40]!r} here; there are: {known}")
        path = min(files, key=lambda path: (path.name != name, SUFFIXES.index(path.suffix.lower())))
        key = (path, path.stat().st_mtime_ns)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        voice = self._kept[key] = self._read(path)
        if len(self._kept) > KEPT_VOICES:
            self._kept.popitem(last=False)
        return voice

    def _files(self) -> list[Path]:
        return [
            path
            for path in self._folder.iterdir()
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
        ]

    def _read(self, path: Path) -> VoicePrompt:
        if path.suffix.lower() == EMBEDDED:
            if self._spec.lm is None:
                raise CheckpointFormatError(f"{path.name} is a voice for a language model, not for a codec")
            return read_embedded(path, self._spec.lm)
        return read_recording(path, self._spec)


def find_voices(folder: str | None, checkpoint: Checkpoint) -> VoiceFolder | None:
    """The configured folder, or else a folder ``voices`` next to the model, or else None.

    Raises:
        ConfigError: the configured folder does not exist.
    """
    if folder is not None:
        return VoiceFolder(Path(folder), checkpoint.spec)
    beside = checkpoint.root / "voices"
    return VoiceFolder(beside, checkpoint.spec) if beside.is_dir() else None


def read_recording(path: Path, spec: ModelSpec) -> VoicePrompt:
    """Read a recording as a voice: mono, normalised in loudness, its end padded to a whole frame.

    Raises:
        AudioError: it is not audio, is silent, or is shorter than 0.4 s.
    """
    pcm = normalise(read_audio(path, spec.sample_rate), spec.sample_rate, LOUDNESS_LUFS)
    tail = -len(pcm) % spec.frame_samples
    return VoicePrompt(pcm=np.pad(pcm, (0, tail)).reshape(-1, spec.frame_samples))


def read_embedded(path: Path, lm: LMSpec) -> VoicePrompt:
    """Read a voice in PersonaPlex's format.

    ``embeddings`` ``[E, 1, 1, dim]`` are the model's inputs at its first E steps; ``cache``
    ``[1, 1 + n_q, R]`` is its delay cache after them, a ring over steps that holds the last two frames.

    Raises:
        CheckpointFormatError: the file has another format, or the voice of another model.
    """
    tensors = read_tensors(path)
    if not {"embeddings", "cache"} <= tensors.keys():
        raise CheckpointFormatError(f"{path.name} has {sorted(tensors)}, a voice has cache and embeddings")
    embedded, cache = tensors["embeddings"], tensors["cache"]
    streams, ring = 1 + lm.n_q, lm.max_delay + 2
    if embedded.ndim < 2 or embedded.shape[-1] != lm.dim or embedded.size == 0:
        raise CheckpointFormatError(
            f"{path.name} has embeddings {list(embedded.shape)}, this model needs [E, 1, 1, {lm.dim}]"
        )
    if cache.ndim != 3 or cache.shape[:2] != (1, streams) or cache.shape[2] < ring or cache.dtype.kind != "i":
        raise CheckpointFormatError(
            f"{path.name} has a cache {list(cache.shape)}, this model needs [1, {streams}, {ring} or more]"
        )
    embedded = embedded.reshape(-1, lm.dim).astype(np.float32, copy=False)
    if not np.isfinite(embedded).all():
        raise CheckpointFormatError(f"{path.name} has embeddings that are not finite")
    count = len(embedded) + 1
    steps = np.array([count - 2, count - 1])[:, None] + np.array(lm.delays)
    codes = cache[0, np.arange(streams), steps % cache.shape[2]]
    if codes.min() < 0 or codes[:, 0].max() > lm.text_card or codes[:, 1:].max() > lm.card:
        raise CheckpointFormatError(
            f"{path.name} has tokens from {codes.min()} to {codes.max()} in its cache, "
            f"this model has {lm.text_card} of text and {lm.card} of audio"
        )
    return VoicePrompt(embedded=embedded, codes=codes.astype(np.int32))
