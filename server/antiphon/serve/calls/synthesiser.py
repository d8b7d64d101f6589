"""A row of a synthesiser as a participant: words in, audio and the words' times out, and nothing is dropped.

Words are pushed as there is room. All of it costs microseconds of the event loop: audio is encoded elsewhere.
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


class Synthesiser(Participant[Piece]):
    """A row of a synthesiser."""

    def __init__(
        self, model: ServedModel, clock: Callable[[], float], voice: Prompt | None, wait_s: float = 0.0
    ) -> None:
        """Prepare to speak with a ``voice``; a place in the queue is waited for as long.

        ``clock`` is the engine's.

        Raises:
            UnsupportedError: the model has no tokenizer.
        """
        if model.tokenizer is None:
            raise UnsupportedError(f"{model.name} has no tokenizer, so it cannot take a text")
        self._place = Place(model.engine, model.parameters(), wait_s, voice)
        self._clock = clock
        self._spec, self._encode = model.checkpoint.spec, model.tokenizer.encode
        self._reader = TextReader(self._spec, self._encode)
        self._has_text = self._is_ended = False
        self._pending: deque[TextEntry] = deque()
        self._texts: deque[str] = deque()
        self._texts_gone = 0
        self._frames = 0
        self._word: tuple[str, float] | None = None

    async def open(self, notify: Notify) -> None:
        self.session = await self._place.take(notify)

    def check(self, text: str) -> Iterator[int]:
        """Read a text as :meth:`read` does, and keep nothing of it: each step yields the number of its words.

        Raises:
            ProtocolError: a word too long to be one.
        """
        return map(len, TextReader(self._spec, self._encode).pieces(text))

    def read(self, text: str) -> Iterator[int]:
        """Words to be said, a piece at each step, so that a long text keeps nothing else from its turn.

        Raises:
            ProtocolError: they come after the end, or are none.
        """
        if self._is_ended:
            raise ProtocolError("text came after its end")
        for entries in self._reader.pieces(text):
            self._pending.extend(entries)
            self._texts.extend(entry.text for entry in entries)
            self._has_text = self._has_text or bool(entries)
            self.is_full = len(self._pending) > MAX_PENDING_WORDS
            yield len(entries)

    def read_prompt(self, prompt: Prompt) -> None:
        if self._has_text or self._is_ended:
            raise ProtocolError("Voice came after text; Voice must precede the first Text")
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
        self.is_full = len(self._pending) > MAX_PENDING_WORDS
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
        said_all = self._is_ended and not self._pending and (not self._has_text or session.is_done)
        if said_all:
            pieces += self._end_word()
        self.is_done = said_all
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
        return round(self._frames * self._spec.frame_ms / 1000, 3)
