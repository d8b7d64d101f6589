"""A recogniser that transcribes a model's output, to compare it with the model's own text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from antiphon.audio.pcm import FloatArray
from antiphon.models.spec import PipelineKind
from antiphon.models.transcript import Marked, Word
from antiphon.protocol import live_events as events
from antiphon.serve.calls.captions import Captions
from antiphon.serve.hosting.served import Models, ServedModel

FINISH_S: Final = 20.0
"""Seconds for the transcript after the end of a call; a slower recogniser is abandoned."""


class OutputListeners:
    """Assigns a recogniser to the output of one call at a time. A recogniser's own callers have priority for
    its rows.
    """

    def __init__(self, models: Models, clock: Callable[[], float]) -> None:
        """Use the first recogniser of ``models``, if there is one."""
        self._models, self._clock = models, clock
        self._current: OutputListener | None = None

    def open(self, model: ServedModel) -> OutputListener | None:
        """The listener for a call of a model with text and audio; None if there is no recogniser."""
        recogniser = self._models.default_of((PipelineKind.STT,))
        if recogniser is None or not model.kind.is_live or model.tokenizer is None:
            return None
        is_busy = self._current is not None and not self._current.is_closed
        if is_busy or not recogniser.engine.health().ready:
            return None
        rate = model.engine.info.spec.sample_rate
        self._current = OutputListener(Captions(recogniser, rate, self._clock))
        return self._current


class OutputListener:
    """The transcript of one call's output, on the event loop only."""

    def __init__(self, recogniser: Captions) -> None:
        """Request a row."""
        self._recogniser = recogniser
        self._is_woken = asyncio.Event()
        self._words: list[str] = []
        self.is_closed = self._is_stopped = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def hear(self, pcm: FloatArray) -> None:
        """Add a frame of the model's audio."""
        self._recogniser.hear(pcm)
        self._is_woken.set()

    def stop(self) -> None:
        """End the audio: the rest is transcribed, and then the row is freed. A second call has no effect."""
        self._is_stopped = True
        self._recogniser.finish()
        self._is_woken.set()

    async def finish(self) -> str | None:
        """The complete transcript; None if the recogniser had no row, or failed."""
        self.stop()
        try:
            async with asyncio.timeout(FINISH_S):
                is_whole = await self._task
        except TimeoutError:
            return None
        return " ".join(self._words) if is_whole else None

    def close(self) -> None:
        """Free the row; a second call has no effect."""
        self.is_closed = True
        self._task.cancel()
        self._recogniser.close()

    async def _run(self) -> bool:
        try:
            return await self._collect()
        finally:  # the call may last for an hour
            self.is_closed = True
            self._recogniser.close()

    async def _collect(self) -> bool:
        """Collect words until the end of the audio; returns whether all of it was transcribed."""
        if await self._recogniser.admit(self._is_woken.set) is not None:
            return False
        if self._is_stopped:  # meanwhile
            self._recogniser.finish()
        while True:
            await self._is_woken.wait()
            self._is_woken.clear()
            for found in self._recogniser.advance(may_report=True):
                if isinstance(found, Word):
                    self._words.append(found.text)
                elif isinstance(found, Marked):
                    return True
                elif isinstance(found, events.Info):
                    return False
