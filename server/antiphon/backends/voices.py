"""Voices that were computed once: kept by their prompt's key, and given to rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from antiphon.backends.executor import TextExecutor
from antiphon.models.prompt import Prompt

CACHE_BYTES: Final = 1 << 30
"""What is kept of voices: one of tts-1.6b takes 82 MB in bfloat16, so a dozen."""

NO_VOICE: Final = ""
"""The key of a row without a speaker."""


class VoiceCache:
    """Keys and values of voices, computed once each; the least recently used go, beyond ``limit_bytes``."""

    def __init__(self, executor: TextExecutor, limit_bytes: int = CACHE_BYTES) -> None:
        """Begin with none."""
        self._executor, self._limit_bytes = executor, limit_bytes
        self._kept: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._held: dict[int, str] = {}

    def give(self, row: int, prompt: Prompt | None) -> bool:
        """Give a row the voice of a prompt, or with None no speaker's; whether the voice was known."""
        key = NO_VOICE if prompt is None else prompt.key
        is_known = key in self._kept
        if not is_known:
            self._kept[key] = self._executor.compute_voice(prompt)
        self._kept.move_to_end(key)
        if self._held.get(row) != key:  # a voice may be 164 MB: it is written only where it is not yet
            self.forget(row)  # a write that fails leaves neither voice there
            self._executor.write_voice(row, self._kept[key])
            self._held[row] = key
        while len(self._kept) > 1 and self._bytes() > self._limit_bytes:
            self._kept.popitem(last=False)
        return is_known

    def forget(self, row: int) -> None:
        """The row's state was written: which voice it has is not known."""
        self._held.pop(row, None)

    def _bytes(self) -> int:
        return sum(int(tensor.nbytes) for kept in self._kept.values() for tensor in kept.values())
