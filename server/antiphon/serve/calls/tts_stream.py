"""Between a caller's text and its speech: push words as there is room, take audio, tell words their times.

Shared by the WebSocket and the POST of ``/api/tts_streaming``. Everything here runs on the event loop, in the
turns of one waker, and costs microseconds: audio is encoded elsewhere.
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
from antiphon.models.script import TextEntry
from antiphon.models.spoken_text import TextReader
from antiphon.protocol.kyutai_tts import Spoken
from antiphon.serve.calls.participant import Participant, Place, StalledSince
from antiphon.serve.hosting.served import ServedModel

MAX_PENDING_WORDS: Final = 1024
"""Words that the engine has no room for yet; beyond, the socket is not read."""

Piece: TypeAlias = FloatArray | Spoken


class TtsStream:
    """One caller's way through the engine. ``clock`` is the engine's.

    ``is_done`` says whether everything was said and taken, when :meth:`advance` last looked.
    """

    def __init__(self, model: ServedModel, clock: Callable[[], float]) -> None:
        """Prepare; :attr:`session` is set once there is one.

        Raises:
            UnsupportedError: the model has no tokenizer.
        """
        if model.tokenizer is None:
            raise UnsupportedError(f"{model.name} has no tokenizer, so it cannot take a text")
        self.session: CallSession | None = None
        self.words = 0
        self.has_text = self.is_ended = self.is_done = False
        self._clock = clock
        self._frame_s = model.checkpoint.spec.frame_ms / 1000.0
        self._spec, self._encode = model.checkpoint.spec, model.tokenizer.encode
        self._reader = TextReader(self._spec, self._encode)
        self._pending: deque[TextEntry] = deque()
        self._texts: deque[str] = deque()
        self._texts_gone = 0
        self._frames = 0
        self._word: tuple[str, float] | None = None

    @property
    def frames(self) -> int:
        """Frames of speech so far."""
        return self._frames

    @property
    def is_full(self) -> bool:
        """Whether the caller should be read no further for now."""
        return len(self._pending) > MAX_PENDING_WORDS

    @property
    def is_idle(self) -> bool:
        """Whether the caller's next word is waited for."""
        is_said = self.session is None or self.session.is_idle
        return is_said and not self._pending and not self.is_ended

    def check(self, text: str) -> Iterator[int]:
        """Read a text as :meth:`put` does, and keep nothing of it but whether it has words.

        Raises:
            ProtocolError: a word too long to be one.
        """
        for entries in TextReader(self._spec, self._encode).pieces(text):
            self.has_text = self.has_text or bool(entries)
            yield len(entries)

    def put(self, text: str) -> Iterator[int]:
        """Words to be said, a piece at each step, so that a long text keeps nothing else from its turn.

        Each step yields the number of its words.

        Raises:
            ProtocolError: they come after the end, or are none.
        """
        if self.is_ended:
            raise ProtocolError("text came after its end")
        for entries in self._reader.pieces(text):
            self._pending.extend(entries)
            self._texts.extend(entry.text for entry in entries)
            self.has_text = self.has_text or bool(entries)
            yield len(entries)

    def finish(self) -> None:
        """No more words come."""
        self.is_ended = True

    def advance(self, *, may_take: bool = True) -> list[Piece]:
        """Push what there is room for, and give what was said since, in order."""
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
        # Asked once, since the engine thread may end the last tick at any moment: a caller that sees it has
        # been given the last word too.
        self.is_done = self._has_said_all(session)
        if self.is_done:
            pieces += self._end_word()
        return pieces

    def _has_said_all(self, session: CallSession) -> bool:
        if not self.is_ended or self._pending:
            return False
        return not self.has_text or session.is_done

    def _push(self, session: CallSession) -> None:
        if session.state is SessionState.CLOSED:
            return
        room = min(session.room_entries, len(self._pending))
        if room:
            self.words += room
            session.push_text([self._pending.popleft() for _ in range(room)], self._clock())
        if self.is_ended and self.has_text and not self._pending:
            session.finish()

    def _begin(self, index: int) -> list[Piece]:
        """The entry of this index begins with the next frame: a word, or a pause."""
        told = self._end_word()
        begun = []
        while self._texts and self._texts_gone <= index:  # several where a model is given whole sentences
            begun.append(self._texts.popleft())
            self._texts_gone += 1
        text = " ".join(filter(None, begun))
        self._word = (text, self._now_s) if text else None
        return told

    def _end_word(self) -> list[Piece]:
        if self._word is None:
            return []
        (text, start_s), self._word = self._word, None
        return [Spoken(text, start_s, self._now_s)]

    @property
    def _now_s(self) -> float:
        return round(self._frames * self._frame_s, 3)


class Synthesiser(Participant[Piece]):
    """A row of a synthesiser: words in, audio and the words' times out, and nothing is dropped."""

    def __init__(
        self, model: ServedModel, clock: Callable[[], float], voice: Prompt | None, wait_s: float = 0.0
    ) -> None:
        """Prepare to speak with a ``voice``; a place in the queue is waited for as long.

        Raises:
            UnsupportedError: the model has no tokenizer.
        """
        self._stream = TtsStream(model, clock)
        self._place = Place(model.engine, model.parameters(), wait_s, voice)
        self._rate = model.checkpoint.spec.sample_rate

    async def open(self, notify: Notify) -> None:
        self.session = self._stream.session = await self._place.take(notify)

    def read(self, text: str) -> Iterator[int]:
        for words in self._stream.put(text):
            self.is_full = self._stream.is_full
            yield words

    def read_prompt(self, prompt: Prompt) -> None:
        if self._stream.has_text or self._stream.is_ended:
            raise ProtocolError("Voice came after text; Voice must precede the first Text")
        try:
            super().read_prompt(prompt)
        except UnsupportedError as error:
            raise ProtocolError(str(error)) from error

    def advance(self, now_s: float, *, may_take: bool) -> list[Piece]:
        pieces = self._stream.advance(may_take=may_take)
        self.is_full, self.is_done, self.words = (
            self._stream.is_full,
            self._stream.is_done,
            self._stream.words,
        )
        return pieces

    def sent(self, reply: Piece, now_s: float, stalled_s: StalledSince) -> float:
        return 0.0 if isinstance(reply, Spoken) else reply.size / self._rate

    def finish(self, now_s: float) -> None:
        self._stream.finish()

    @property
    def waits_for_us(self) -> bool:
        return self._stream.has_text and not self._stream.is_idle
