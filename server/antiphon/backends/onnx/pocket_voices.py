"""Voices of Pocket-TTS's rows: exported voices are written directly, recordings are encoded first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from antiphon.backends.base import FloatArray, PrimeProgress
from antiphon.backends.onnx.pocket_language import PocketLanguage
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.snapshots import SnapshotCache
from antiphon.models.pocket_shape import BOS, HEARD, READ_POSITIONS
from antiphon.models.prompt import Prompt

KEPT_BYTES: Final = 128 * 2**20
"""Cached voices of recordings, about ten of the full model; the least recently used is dropped first."""

SILENCE_S: Final = 0.02
"""Seconds of a block in the detection of silence, and of the fade at the end."""
PAUSE_S: Final = 0.08
FLOOR_DB: Final = 35.0
"""A block quieter than the loudest one by more than this is silence."""


def end_on_pause(pcm: FloatArray, sample_rate: int) -> FloatArray:
    """Cut a recording, float32 ``[N]``, after its last sound and append 80 ms of silence, like the function
    ``end_on_pause`` of the package ``pocket_tts``.

    If a voice stops during speech, the model continues it; if it ends with a long silence, the model starts
    late.
    """
    frame = max(1, int(SILENCE_S * sample_rate))
    count = len(pcm) // frame
    if not count:
        return pcm
    loudness = np.sqrt(np.square(pcm[: count * frame].reshape(count, frame)).mean(axis=1))
    level_db = 20 * np.log10(loudness + 1e-12)
    end = (int(np.flatnonzero(level_db > level_db.max() - FLOOR_DB)[-1]) + 1) * frame
    ended = pcm[:end].copy()
    ended[end - frame :] *= np.linspace(1, 0, frame, dtype=np.float32)
    return np.concatenate([ended, np.zeros(int(PAUSE_S * sample_rate), np.float32)])


@dataclass(slots=True)
class Recording:
    """A recording that is being encoded: its ``frames [F, samples]``, and the latents so far."""

    key: str
    frames: FloatArray
    latents: list[FloatArray] = field(default_factory=list)
    read: int = 0


class PocketVoices:
    """Loads voices into rows, piece by piece; with ``begins`` a start token precedes a recording."""

    def __init__(self, language: PocketLanguage, encode: Stage | None, *, begins: bool) -> None:
        """Start without voices. ``encode`` is None for a model with exported voices only."""
        self._language, self._encode, self._begins = language, encode, int(begins)
        self._kept = SnapshotCache[FloatArray](KEPT_BYTES, lambda array: array.nbytes)
        self._heard: dict[int, Recording] = {}

    def forget(self, row: int) -> None:
        """Drop a partly encoded recording."""
        self._heard.pop(row, None)

    def is_encoding(self, row: int, prompt: Prompt) -> bool:
        """Whether a part of this recording is encoded for the row."""
        return row in self._heard and self._heard[row].key == prompt.key

    def give(self, row: int, prompt: Prompt, sample_rate: int) -> PrimeProgress:
        """Do one piece of work on a checked voice for a row, which is fresh before the first piece."""
        kept = self._kept.get(prompt.key) if prompt.keys_values is None else prompt.keys_values
        if kept is not None:
            self.forget(row)  # another row may have encoded the same recording meanwhile
            self._language.write_voice(row, kept)
            return PrimeProgress(1, 1, is_copied=prompt.keys_values is None)
        assert prompt.voice is not None
        if row not in self._heard:
            self._heard[row] = Recording(prompt.key, _frames_of(prompt.voice, sample_rate))
        heard = self._heard[row]
        self._hear(row, heard)
        frames = len(heard.frames)
        done, total = len(heard.latents) + heard.read, 2 * frames + self._begins
        if done == total:
            self.forget(row)
            self._language.keep_voice(row)
            self._kept.put(prompt.key, self._language.copy_voice(row))
        return PrimeProgress(done, total)

    def _hear(self, row: int, heard: Recording) -> None:
        """Encode the next frame, or read the next positions after all are encoded."""
        done = len(heard.latents)
        if done < len(heard.frames):
            assert self._encode is not None
            found = self._encode.run(np.array([row], np.int32), {"pcm": heard.frames[done : done + 1]})
            heard.latents.append(found["heard"][0])
            return
        tokens = [BOS] * self._begins + [HEARD] * done
        latents = np.stack([np.zeros_like(heard.latents[0])] * self._begins + heard.latents)
        part = slice(heard.read, heard.read + READ_POSITIONS)
        self._language.read(row, tokens[part], latents[part])
        heard.read += len(tokens[part])


def _frames_of(voice: FloatArray, sample_rate: int) -> FloatArray:
    """Frames ``[F, samples]`` of a recording that ends with a pause; the last is padded with silence."""
    pcm, samples = end_on_pause(voice.reshape(-1), sample_rate), voice.shape[1]
    whole = np.zeros((-(-len(pcm) // samples), samples), np.float32)
    whole.reshape(-1)[: len(pcm)] = pcm
    return whole
