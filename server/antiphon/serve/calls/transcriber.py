"""A row of a recogniser as a participant: audio and markers in, words out; nothing is dropped.

Audio is pushed as room permits, and a marker returns when everything before it is transcribed. Each operation
takes microseconds of the event loop.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from antiphon.audio.pcm import FloatArray
from antiphon.errors import ProtocolError, UnsupportedError
from antiphon.ipc.engine_client import CallSession, Notify
from antiphon.ipc.values import FrameReply, SessionState
from antiphon.models.sampling import SamplingParameters
from antiphon.models.transcript import MAX_MARKERS, Event, FrameHeard, Marked, SpeechTiming, Transcript, Word
from antiphon.protocol import kyutai
from antiphon.serve.calls.participant import Participant, Place, StalledSince
from antiphon.serve.hosting.served import ServedModel

MAX_PENDING_SAMPLES: Final = 24_000
"""Seconds of audio that wait for room in the engine; with more, the client is not read."""

END_MARK: Final = 0
"""The marker after the last audio: it returns when all speech before it is transcribed."""

QUIET_S: Final = 0.16
"""A caller with a waiting marker and no audio for two frames counts as paused."""


@dataclass(frozen=True, slots=True)
class AsrNews:
    """New words, and the replies that are sent together with them.

    ``buffered_samples`` of the caller's audio wait for the model.
    """

    events: tuple[Event, ...] = ()
    replies: tuple[FrameReply, ...] = ()
    buffered_samples: int = 0

    @property
    def messages(self) -> list[kyutai.ServerMessage]:
        """The new words as messages of Kyutai's protocol."""
        return [_message(event, self.buffered_samples) for event in self.events]


class Transcriber(Participant[AsrNews]):
    """A row of a recogniser as a call's participant. ``pending_samples`` wait for room in the engine."""

    def __init__(self, model: ServedModel, clock: Callable[[], float], wait_s: float = 0.0) -> None:
        """Prepare; ``wait_s`` limits the wait in the queue. ``clock`` is the clock of the engine.

        Raises:
            UnsupportedError: the model has no text.
        """
        spec = model.checkpoint.spec
        if spec.lm is None or model.tokenizer is None:
            raise UnsupportedError(f"{model.name} writes no text")
        timing = SpeechTiming.of(spec)
        self.pending_samples = 0
        self._place = Place(model.engine, asr_parameters(model), wait_s)
        self._clock = clock
        self._padding_id = spec.lm.text_padding_id
        self._transcript = Transcript(timing, spec.lm, spec.frame_samples, model.tokenizer.decode)
        self.lead_frames = timing.prefix_frames
        self._silence_left = timing.prefix_frames * spec.frame_samples
        self._frame_samples = spec.frame_samples
        self._input: deque[FloatArray | int] = deque()
        self._last_audio_s = clock()
        self._is_ended = False
        self._flushing: set[int] = set()  # markers that flush padding brings out
        self._held_at: int | None = None  # audio after this marker waits until it has returned

    async def open(self, notify: Notify) -> None:
        self.session = await self._place.take(notify)

    def put(self, pcm: FloatArray, received_s: float) -> None:
        if pcm.size:
            self._input.append(pcm)
            self.pending_samples += pcm.size
            self._last_audio_s = self._clock()
        self.is_full = self.pending_samples > MAX_PENDING_SAMPLES

    def mark(self, marker: int) -> None:
        """Add a marker.

        Raises:
            ProtocolError: more markers wait than the limit.
        """
        if self._transcript.is_full or len(self._input) > 2 * MAX_MARKERS:
            raise ProtocolError(f"{MAX_MARKERS} markers are pending, which is the limit")
        self._input.append(marker)

    def flush_recogniser(self, marker: int) -> None:
        """Add a marker that returns as fast as the model runs: later audio waits until then.

        Raises:
            ProtocolError: more markers wait than the limit.
        """
        self.mark(marker)
        self._flushing.add(marker)

    def finish(self, now_s: float) -> None:
        if not self._is_ended:
            self._is_ended = True
            self.mark(END_MARK)

    def advance(self, now_s: float, *, may_take: bool) -> list[AsrNews]:
        session = self.session
        if session is None:
            return []
        events: list[Event] = []
        replies = session.take() if may_take else []
        for reply in replies:
            events += self._hear(reply)
        if self._held_at is not None and Marked(self._held_at) in events:
            self._held_at = None
        events += self._feed(session)
        if self._quiet_in_s() == 0.0:
            session.feed_padding(self._transcript.padding_frames_wanted(), self._clock())
        self.is_full = self.pending_samples > MAX_PENDING_SAMPLES
        self.words += sum(isinstance(event, Word) for event in events)
        self.due_s = now_s + self._quiet_in_s()
        self.is_done |= self._is_ended and Marked(END_MARK) in events
        if not (events or replies):
            return []
        buffered = self.pending_samples + session.queue_frames * self._frame_samples
        return [AsrNews(tuple(events), tuple(replies), buffered)]

    def sent(self, reply: AsrNews, now_s: float, stalled_s: StalledSince) -> float:
        assert self.session is not None
        for it in reply.replies:
            self.session.sent(it, now_s, stalled_s(it.replied_s))
        return 0.0

    @property
    def waits_for_us(self) -> bool:
        waits = self.session is not None and self.session.queue_frames > 0
        return self._is_ended or self.pending_samples > 0 or waits

    @property
    def is_idle(self) -> bool:
        is_heard = self.session is None or self.session.is_idle
        return is_heard and not self._input and not self._transcript.has_marks

    def _quiet_in_s(self) -> float:
        """Seconds until silence may replace the caller's audio; infinite if it is not needed."""
        session = self.session
        if session is None or not self._transcript.has_marks or not session.is_idle:
            return math.inf
        if self._held_at is not None:
            return 0.0
        if self._input:
            return math.inf
        return 0.0 if self._is_ended else max(0.0, self._last_audio_s + QUIET_S - self._clock())

    def _hear(self, reply: FrameReply) -> list[Event]:
        token = self._padding_id if reply.text_token is None else reply.text_token
        if reply.is_padding:
            return self._transcript.feed_padding(token)
        events: list[Event] = []
        for _ in range(self._transcript.steps, reply.frame):  # lost in a step that failed for others
            events += self._transcript.hear(self._padding_id, ())
        return events + self._transcript.hear(token, reply.vad)

    def _feed(self, session: CallSession) -> list[Event]:
        """Push audio as room permits; a marker is set after all audio before it."""
        events: list[Event] = []
        if session.state is not SessionState.ACTIVE:
            return events
        if self._silence_left:
            samples = min(self._silence_left, session.room_samples)
            session.push(np.zeros(samples, np.float32), self._clock())
            self._silence_left -= samples
        while self._input and not self._silence_left and self._held_at is None:
            item = self._input[0]
            if isinstance(item, int):
                events += self._transcript.mark(item)
                self._input.popleft()
                if item in self._flushing:
                    self._flushing.remove(item)
                    self._held_at = None if Marked(item) in events else item
                continue
            taken = min(session.room_samples, item.size)
            if not taken:
                break
            session.push(item[:taken], self._clock())
            self._transcript.received(taken)
            self.pending_samples -= taken
            if taken < item.size:
                self._input[0] = item[taken:]
            else:
                self._input.popleft()
        return events


def asr_parameters(model: ServedModel) -> SamplingParameters:
    """The checkpoint's sampling parameters, or greedy sampling if it has none: a transcript needs no
    randomness.
    """
    if "lm_gen_config" in model.checkpoint.generation:
        return model.defaults
    return replace(model.defaults, text_temperature=0.0)


def _message(event: Event, buffered_samples: int) -> kyutai.ServerMessage:
    if isinstance(event, FrameHeard):
        return kyutai.Step(event.index, event.pauses, buffered_samples)
    if isinstance(event, Marked):
        return kyutai.Marker(event.id)
    if isinstance(event, Word):
        return kyutai.Word(event.text, event.start_s)
    return kyutai.EndWord(event.stop_s)
