"""Voices as the model keeps them: exported ones at once, recordings once each and beside the ticks."""

from __future__ import annotations

from concurrent.futures import Executor, Future, wait
from typing import Final

import torch

from antiphon.backends.pocket.model import PocketModel, State, state_bytes
from antiphon.backends.snapshots import SnapshotCache
from antiphon.errors import UnsupportedError
from antiphon.models.pocket import PocketShape
from antiphon.models.prompt import Prompt

KEPT_BYTES: Final = 128 * 2**20
"""Voices of recordings that are kept, the least recently used going first: some twenty of the full model."""

WAIT_S: Final = 0.005
"""How long a call waits for a recording to be heard: callers who speak wait no longer between two ticks."""


class Voices:
    """Makes what a row begins with. ``executor`` hears recordings, which takes up to a second or two."""

    def __init__(
        self, model: PocketModel, shape: PocketShape, frame_samples: int, executor: Executor
    ) -> None:
        """Begin with none."""
        self._model, self._shape, self._frame_samples = model, shape, frame_samples
        self._executor = executor
        self._kept = SnapshotCache(KEPT_BYTES, state_bytes)
        self._running: dict[str, Future[State]] = {}

    def get(self, prompt: Prompt) -> State | None:
        """The voice of a prompt, None while it is still being made.

        Raises:
            UnsupportedError: a prompt that is no voice of this model.
            RuntimeError: the model failed.
        """
        self._check(prompt)
        if prompt.keys_values is not None:
            return self._model.voice(prompt)
        if (kept := self._kept.get(prompt.key)) is not None:
            return kept
        running = self._running.get(prompt.key)
        if running is None:
            running = self._running[prompt.key] = self._executor.submit(self._hear, prompt)
        if running not in wait([running], WAIT_S).done:
            return None
        del self._running[prompt.key]
        heard = running.result()
        self._kept.put(prompt.key, heard)
        return heard

    def knows(self, prompt: Prompt) -> bool:
        """Whether a recording was heard before."""
        return self._kept.get(prompt.key) is not None

    def _hear(self, prompt: Prompt) -> State:
        with torch.inference_mode():
            return self._model.voice(prompt)

    def _check(self, prompt: Prompt) -> None:
        shape = self._shape
        if prompt.keys_values is not None:
            found = prompt.keys_values.shape
            wanted = (shape.layers, 2, shape.heads, shape.head_dim)
            if (
                len(found) == 5
                and (*found[:2], *found[3:]) == wanted
                and 1 <= found[2] <= shape.max_positions
            ):
                return
            raise UnsupportedError(
                f"keys and values {list(found)}, but this model needs [{shape.layers}, 2, 1 to "
                f"{shape.max_positions}, {shape.heads}, {shape.head_dim}]"
            )
        if prompt.voice is None:
            raise UnsupportedError("this model takes a voice, exported or recorded, and no other prompt")
        if not shape.clones:
            raise UnsupportedError("this model has no weights for making a voice from a recording")
        frames, samples = prompt.voice.shape
        if not 1 <= frames < shape.max_positions or samples != self._frame_samples:
            raise UnsupportedError(
                f"a recording [{frames}, {samples}], but this model needs "
                f"[1 to {shape.max_positions - 1}, {self._frame_samples}]"
            )
