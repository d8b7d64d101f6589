"""Voices that were computed once: kept by their prompt's key, and given to rows."""

from __future__ import annotations

from typing import Final

from antiphon.backends.executor import TextExecutor
from antiphon.backends.snapshots import SnapshotCache, Tensors, size_of
from antiphon.models.prompt import Prompt

NO_VOICE: Final = ""
"""The key of a row without a speaker."""


class VoiceCache:
    """Keys and values of voices, computed once each as long as ``limit_bytes`` hold them."""

    def __init__(self, executor: TextExecutor, limit_bytes: int) -> None:
        """Begin with none."""
        self._executor, self._kept = executor, SnapshotCache[Tensors](limit_bytes, size_of)
        self._held: dict[int, str] = {}

    def give(self, row: int, prompt: Prompt | None) -> bool:
        """Give a row the voice of a prompt, or with None no speaker's; whether the voice was known."""
        key = NO_VOICE if prompt is None else prompt.key
        kept = self._kept.get(key)
        voice = self._executor.compute_voice(prompt) if kept is None else kept
        self._kept.put(key, voice)
        if self._held.get(row) != key:  # a voice may be 164 MB: it is written only where it is not yet
            self.forget(row)  # a write that fails leaves neither voice there
            self._executor.write_voice(row, voice)
            self._held[row] = key
        return kept is not None

    def forget(self, row: int) -> None:
        """The row's state was written: which voice it has is not known."""
        self._held.pop(row, None)
