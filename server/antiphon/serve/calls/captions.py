"""The transcript of a live session's caller, from a recogniser's row next to the model's row.

Both rows process the same samples, decoded once. The recogniser is optional: if it has no row, fails or falls
behind, one ``info`` event reports it, and the call continues without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from antiphon.audio.pcm import FloatArray
from antiphon.audio.resample import Resampler
from antiphon.errors import SessionError, SessionFailedError, UnsupportedError
from antiphon.ipc.engine_client import Notify
from antiphon.ipc.values import SessionState
from antiphon.models.transcript import Marked, Word
from antiphon.protocol import live_events as events
from antiphon.serve.calls.transcriber import Transcriber
from antiphon.serve.hosting.served import ServedModel

MAX_BEHIND_S: Final = 10.0
"""Maximum seconds of audio that wait for the recogniser. A recogniser that is further behind would never
catch up. 10 s take 1 MB.
"""

UNAVAILABLE, ENDED = "input_transcript_unavailable", "input_transcript_ended"


class Captions:
    """One caller's transcript; used on the event loop only."""

    def __init__(self, model: ServedModel, rate: int, clock: Callable[[], float]) -> None:
        """Accept samples at ``rate``, the rate of the call's model; ``clock`` is the clock of the engines."""
        self._model, self._clock = model, clock
        spec = model.engine.info.spec
        self._resampler = Resampler(rate, spec.sample_rate)
        self._most_samples = round(MAX_BEHIND_S * spec.sample_rate)
        self._hearing: Transcriber | None = None
        self._is_finishing = False

    async def admit(self, notify: Notify) -> events.Info | None:
        """Request a row at once; if no row is free, return the notice for the client."""
        try:
            hearing = Transcriber(self._model, self._clock)
            await hearing.open(notify)
        except (SessionError, UnsupportedError) as error:
            return events.Info(UNAVAILABLE, f"no transcript of the input: {error}")
        self._hearing = hearing
        return None

    def hear(self, pcm: FloatArray) -> None:
        """Add audio of the caller, float32 ``[N]`` at the rate of the call's model."""
        if self._hearing is not None and not self._is_finishing:
            self._hearing.put(self._resampler.feed(pcm), self._clock())

    def finish(self) -> None:
        """End the audio: the rest of the transcript follows."""
        if self._hearing is not None and not self._is_finishing:
            self._is_finishing = True
            self._hearing.finish(self._clock())

    def mark(self, marker: int) -> None:
        """Mark this position in the audio: the marker returns when all speech before it is transcribed."""
        if self._hearing is not None and not self._is_finishing:
            self._hearing.mark(marker)

    @property
    def is_idle(self) -> bool:
        """Whether all speech is transcribed."""
        return self._hearing is None or self._hearing.is_idle

    def advance(self, *, may_report: bool) -> list[Word | Marked | events.Info]:
        """Advance the transcription; return the new words, markers, and at the end one notice if it failed.

        If ``may_report`` is false, words are kept for later.
        """
        hearing = self._hearing
        if hearing is None:
            return []
        words: list[Word | Marked | events.Info] = []
        for news in hearing.advance(self._clock(), may_take=may_report):
            hearing.sent(news, self._clock(), lambda _since_s: 0.0)
            words += [event for event in news.events if isinstance(event, Word | Marked)]
        if hearing.state is SessionState.CLOSED:
            return [*words, self._give_up(hearing.reason or SessionFailedError("it has ended"))]
        if hearing.pending_samples > self._most_samples:
            return [*words, self._give_up(SessionFailedError(f"it is more than {MAX_BEHIND_S:g} s behind"))]
        return words

    def close(self) -> None:
        """Free the row; a second call has no effect."""
        if self._hearing is not None:
            self._hearing.close()
        self._hearing = None

    def _give_up(self, error: Exception) -> events.Info:
        self.close()
        return events.Info(ENDED, f"no more transcripts of the input: {error}")
