"""A row of a synthesiser as a participant: words in, audio and the words' times out; nothing is dropped.

Words are pushed as room permits. Each operation takes microseconds of the event loop: audio is encoded
elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from antiphon.audio.pcm import FloatArray
from antiphon.errors import ProtocolError, UnsupportedError
from antiphon.ipc.engine_client import CallSession, Notify
from antiphon.ipc.values import SessionState
from antiphon.models.prompt import Prompt
from antiphon.models.script import TextEntry, TextReader
from antiphon.models.spelling import Speller, Unspoken
from antiphon.protocol.kyutai_tts import Spoken
from antiphon.serve.calls.participant import Participant, Place, StalledSince
from antiphon.serve.hosting.served import ServedModel

MAX_PENDING_WORDS: Final = 1024
"""Maximum number of words that wait for room in the engine; with more, the socket is not read."""

Piece: TypeAlias = FloatArray | Spoken


class Synthesiser(Participant[Piece]):
    """A row of a synthesiser as a call's participant. ``unspoken``: words that the model cannot pronounce,
    found by :meth:`check`.
    """

    def __init__(
        self, model: ServedModel, clock: Callable[[], float], voice: Prompt | None, wait_s: float = 0.0
    ) -> None:
        """Prepare for a ``voice``; ``wait_s`` limits the wait in the queue.

        ``clock`` is the clock of the engine.

        Raises:
            UnsupportedError: the model has no tokenizer.
        """
        if model.tokenizer is None:
            raise UnsupportedError(f"{model.name} has no tokenizer, so it cannot take a text")
        self._place = Place(model.engine, model.parameters(), wait_s, voice)
        self._clock = clock
        self.unspoken = Unspoken()
        self._spec, self._encode = model.checkpoint.spec, model.tokenizer.encode
        self._speller = Speller(model.tokenizer)
        self._voice = voice
        self._begin_text()

    def _begin_text(self) -> None:
        self._reader = TextReader(self._spec, self._encode, self._speller)
        self._has_text = self._is_ended = self.is_done = self.is_full = False
        self._pending: deque[TextEntry] = deque()
        self._texts: deque[TextEntry] = deque()  # not begun yet
        self._texts_gone = 0
        self._frames = 0
        self._word: tuple[str, float] | None = None

    def restart(self) -> None:
        """Discard text that was not yet synthesised, and begin a new text with times from 0."""
        self._begin_text()
        if self.session is not None:
            self.session.restart(self._voice)

    @property
    def rate(self) -> int:
        """The sampling rate of its audio."""
        return self._spec.sample_rate

    async def open(self, notify: Notify) -> None:
        self.session = await self._place.take(notify)

    def check(self, text: str) -> Iterator[int]:
        """Read a text like :meth:`read`, but store only its unspoken words.

        Each step yields the number of its words, spoken or not.

        Raises:
            ProtocolError: a word is too long.
        """
        for entries in TextReader(self._spec, self._encode, self._speller).pieces(text):
            self.unspoken.add(entry.text for entry in entries if not entry.is_spoken)
            yield len(entries)

    def read(self, text: str) -> Iterator[int]:
        """Add words, a piece at each step, so that a long text does not delay other calls.

        Raises:
            ProtocolError: the input has ended, or there are no words.
        """
        if self._is_ended:
            raise ProtocolError("text came after its end")
        for entries in self._reader.pieces(text):
            spoken = [entry for entry in entries if entry.is_spoken]
            self._pending.extend(spoken)
            self._texts.extend(entries)
            self._has_text = self._has_text or bool(spoken)
            self.is_full = self._has_enough
            yield len(entries)

    def read_prompt(self, prompt: Prompt) -> None:
        if self._has_text or self._is_ended:
            raise ProtocolError("Voice came after text; Voice must precede the first Text")
        self._voice = prompt
        try:
            super().read_prompt(prompt)
        except UnsupportedError as error:
            raise ProtocolError(str(error)) from error

    def finish(self, now_s: float) -> None:
        self._is_ended = True

    def advance(self, now_s: float, *, may_take: bool) -> list[Piece]:
        session = self.session
        if session is None:
            return []
        self._push(session)
        pieces: list[Piece] = []
        for reply in session.take() if may_take else []:
            if reply.text_token is not None:
                pieces += self._begin(reply.text_token)
            if reply.pcm is not None:
                self._frames += 1
                pieces.append(reply.pcm)
            session.sent(reply, self._clock())
        # Read once, since the engine thread may end the last tick at any moment: a caller that reads the end
        # also has the last word.
        said_all = self._is_ended and not self._pending and (not self._has_text or session.is_done)
        if said_all:
            pieces += self._end_word()
        if may_take and (said_all or not self._has_text):
            pieces += self._skip()
        self.is_done, self.is_full = said_all, self._has_enough
        return pieces

    def sent(self, reply: Piece, now_s: float, stalled_s: StalledSince) -> float:
        return 0.0 if isinstance(reply, Spoken) else reply.size / self._spec.sample_rate

    @property
    def waits_for_us(self) -> bool:
        is_said = self.session is None or self.session.is_idle
        return self._has_text and (self._is_ended or bool(self._pending) or not is_said)

    def _push(self, session: CallSession) -> None:
        if session.state is SessionState.CLOSED:
            return
        room = min(session.room_entries, len(self._pending))
        if room:
            self.words += room
            session.push_text([self._pending.popleft() for _ in range(room)], self._clock())
        if self._is_ended and self._has_text and not self._pending:
            session.finish()

    def _begin(self, index: int) -> list[Piece]:
        """Begin the entry of this index, a word or a pause, with the next frame."""
        told = [*self._end_word(), *self._skip()]
        begun = []
        while self._texts and self._texts_gone <= index:  # several if a model takes whole sentences
            if (entry := self._texts.popleft()).is_spoken:
                begun.append(entry.text)
                self._texts_gone += 1
            else:
                told.append(Spoken(entry.text, self._now_s, self._now_s))
        text = " ".join(filter(None, begun))
        self._word = (text, self._now_s) if text else None
        return told

    @property
    def _has_enough(self) -> bool:
        return len(self._pending) > MAX_PENDING_WORDS or len(self._texts) > 2 * MAX_PENDING_WORDS

    def _skip(self) -> list[Piece]:
        """Skip entries without speech: words that take no time."""
        told: list[Piece] = []
        while self._texts and not self._texts[0].is_spoken:
            told.append(Spoken(self._texts.popleft().text, self._now_s, self._now_s))
        return told

    def _end_word(self) -> list[Piece]:
        if self._word is None:
            return []
        (text, start_s), self._word = self._word, None
        return [Spoken(text, start_s, self._now_s)]

    @property
    def _now_s(self) -> float:
        return round(self._frames * self._spec.frame_ms / 1000, 3)
