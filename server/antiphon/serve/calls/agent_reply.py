"""One reply of an agent: the text model's pieces in, the synthesiser's words and paced sound out."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Final

from antiphon.agent.chat_stream import CallPiece, Piece, ReplyEnded, TextPiece, TokensUsed
from antiphon.agent.history import HistoryEntry, Role
from antiphon.agent.speakable import SpeakableText
from antiphon.agent.values import (
    COMPLETED,
    CUT,
    FAILED,
    AgentNews,
    AskReply,
    ReplyBegan,
    ReplyOver,
    ReplySound,
    ReplyText,
    ReplyWritten,
    ToolCalled,
)
from antiphon.audio.pcm import FloatArray
from antiphon.errors import TextModelError
from antiphon.log import Log
from antiphon.protocol.kyutai_tts import Spoken
from antiphon.serve.calls.synthesiser import Synthesiser

LEAD_S: Final = 0.16
"""Maximum seconds by which sound is sent before its playback, so that the client plays little after an
interruption.
"""

JITTER_S: Final = 0.08
"""Seconds by which a client may play sound later than expected, or receive an interruption earlier."""

MAX_READY: Final = 8
"""Pieces of sound that are taken from the synthesiser before they are due; further pieces wait in its engine.
"""

PIECE_CHARS: Final = 32
PIECES_A_TURN: Final = 8
"""Maximum characters of a piece of text, and maximum pieces that are read before other calls are served;
reading them takes a millisecond.
"""

MAX_WORD_CHARS: Final = 60
"""A longer word is split, because a synthesiser limits the length of words, and some languages write no
spaces.
"""

FAILED_WORDS: Final = "the agent's text model has failed"

_TOO_LONG: Final = re.compile(rf"\S{{{MAX_WORD_CHARS}}}(?=\S)")


class Reply:
    """One reply, made from the pieces of a text model. It answers the request ``asked``, or a turn if
    ``asked`` is None.

    With ``is_early`` it sends nothing until :meth:`release`. ``voice`` is the synthesiser, which must be
    idle; None makes the reply text only. If it ``is_kept``, ``item`` and ``entry`` are its place in the
    history. ``due_s`` is the time at which :meth:`advance` has sound to send. ``has_text``: its first text
    has arrived; ``is_measured``: its latency is recorded.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[Piece],
        voice: Synthesiser | None,
        *,
        asked: AskReply | None,
        is_early: bool,
        sorry: str,
        new_id: Callable[[str], str],
        wake: Callable[[], None],
    ) -> None:
        """Request the ``pieces``; if they fail before anything was spoken, speak ``sorry``."""
        self.asked, self.is_early, self.is_held = asked, is_early, False
        self.item, self.entry = new_id("item"), HistoryEntry(Role.ASSISTANT)
        self.is_kept = asked is None or not asked.is_apart
        self.due_s = math.inf
        self.has_text = self.is_measured = False
        self._voice, self._sorry, self._new_id, self._wake = voice, sorry, new_id, wake
        self._pieces: deque[Piece] = deque()
        self._words = SpeakableText()
        self._calls: dict[int, ToolCalled] = {}
        self._tokens = TokensUsed(0, 0)
        self._error: TextModelError | None = None
        self._has_begun = self._has_said = self._has_written = False
        self._is_cut = self._is_whole = self._is_read = False
        self._ready: deque[FloatArray | Spoken] = deque()
        self._said: list[AgentNews] = []
        self._sent_s = self._began_s = 0.0
        self._held_s = math.nan
        self._task = asyncio.get_running_loop().create_task(self._collect(pieces))

    async def _collect(self, source: AsyncGenerator[Piece]) -> None:
        try:
            async with contextlib.aclosing(source) as pieces:
                async for piece in pieces:
                    if isinstance(piece, TextPiece):
                        self.has_text = True
                        starts = range(0, len(piece.text), PIECE_CHARS)
                        self._pieces.extend(TextPiece(piece.text[it : it + PIECE_CHARS]) for it in starts)
                    else:
                        self._pieces.append(piece)
                    self._wake()
        except TextModelError as error:
            Log(__name__).warning("the text model failed", reason=str(error))
            wait_s = error.retry_after_s
            again = "" if wait_s is None else f"; try again in {wait_s} s"
            self._error = TextModelError(FAILED_WORDS + again)  # the host's name is for operators only
        except Exception as error:  # a boundary: the call continues after any error of a reply
            Log(__name__).error("a reply of a text model could not be read", exc_info=error)
            self._error = TextModelError(FAILED_WORDS)
        finally:
            self._is_whole = True
            self._wake()

    @property
    def has_sound(self) -> bool:
        """Whether a part of the reply's sound was sent."""
        return self._sent_s > 0.0

    @property
    def is_spoken(self) -> bool:
        """Whether the synthesiser has text of this reply that must be cleared."""
        return self._voice is not None and (self._has_said or self._is_read)

    def release(self) -> None:
        """Start to send: the turn that it replies to has ended."""
        self.is_early = False

    def hold(self, now_s: float) -> None:
        """Pause the reply's sound."""
        self.is_held, self._held_s = True, now_s

    def resume(self, now_s: float) -> None:
        """Continue after a pause; the client has played all sound that was sent before it."""
        self.is_held = False
        ahead_s = max(0.0, self._sent_s - self._played_s(self._held_s))
        self._began_s += max(0.0, now_s - self._held_s - ahead_s)

    def rewind(self, seconds: float, now_s: float) -> None:
        """Send the last ``seconds`` of sound again; the client has played at most the sound before these
        seconds.
        """
        played_s = max(0.0, min(self._played_s(now_s), self._sent_s - seconds))
        if self.is_held:
            self._held_s = now_s
        self._began_s = now_s - played_s

    def heard_ms(self, now_s: float) -> int:
        """Milliseconds of the reply's sound that were certainly played."""
        return math.floor(1000 * self._heard_s(now_s))

    def over(self, outcome: str) -> ReplyOver:
        """End the reply, and the request to the text model."""
        self._task.cancel()
        tokens = self._tokens
        return ReplyOver(outcome, self._error, tokens.tokens_in, tokens.tokens_out)

    def advance(self, now_s: float, *, may_take: bool) -> list[AgentNews]:
        """Advance as far as possible; return new events. The last event of a reply is :class:`ReplyOver`."""
        news: list[AgentNews] = []
        texts = self._read(now_s)
        if self.is_early:
            self._ready.extend(texts)
            if self._voice is not None:
                self._voice.advance(now_s, may_take=False)
            return news
        if not self._has_begun:
            self._has_begun = True
            news.append(ReplyBegan(self.asked))
        news += self._said
        self._said.clear()
        self._ready.extend(texts)
        if self._voice is not None:
            self._ready.extend(self._voice.advance(now_s, may_take=len(self._ready) < MAX_READY))
        news += self._tell(now_s, may_take=may_take)
        if self._is_heard(now_s):
            if self._error is None and not self._is_cut:  # else the arguments may be incomplete
                news += self._calls.values()
            outcome = FAILED if self._error is not None else CUT if self._is_cut else COMPLETED
            news.append(self.over(outcome))
        return news

    def _read(self, now_s: float) -> list[Spoken]:
        """Read the pieces that arrived; returns new text of a reply without a voice."""
        written: list[Spoken] = []
        for _ in range(min(PIECES_A_TURN, len(self._pieces))):
            match self._pieces.popleft():
                case TextPiece(text) if self._voice is None:
                    written.append(Spoken(text, 0.0, 0.0))
                case TextPiece(text):
                    self._say(self._words.feed(text))
                case CallPiece(index, call_id, name, arguments):
                    if index not in self._calls:
                        call_id = call_id or self._new_id("call")  # the history finds outputs by this id
                        self._calls[index] = ToolCalled(self._new_id("item"), call_id, name, [])
                    call = self._calls[index]
                    assert isinstance(call.pieces, list)
                    call.pieces.append(arguments)
                case TokensUsed() as tokens:
                    self._tokens = tokens
                case ReplyEnded(is_cut):
                    self._is_cut = is_cut
        if self._pieces:
            self._wake()
        elif self._is_whole and not self._is_read:
            self._is_read = True
            self._say(self._words.finish())
            if self._error is not None and not self._has_said:
                self.is_kept = False
                self._say(self._sorry)
            if self._voice is not None:
                self._said.append(ReplyWritten("", is_whole=True))
                self._voice.finish(now_s)
        return written

    def _say(self, words: str) -> None:
        if self._voice is not None and words.strip():
            self._has_said = True
            self._said.append(ReplyWritten(words))
            for _ in self._voice.read(_TOO_LONG.sub(r"\g<0> ", words)):
                pass

    def _tell(self, now_s: float, *, may_take: bool) -> list[AgentNews]:
        """Return the words that were spoken, and the sound that is due."""
        news: list[AgentNews] = []
        self.due_s = math.inf
        while self._ready and may_take:
            piece = self._ready[0]
            if isinstance(piece, Spoken):
                self._ready.popleft()
                news.append(self._written(piece))
                continue
            if self.is_held:
                break
            if not self._sent_s or self._played_s(now_s) > self._sent_s:
                self._began_s = now_s - self._sent_s  # its first sound, or sound that arrived too late
            upto_s = self._sent_s + piece.size / self._rate
            if upto_s > self._played_s(now_s) + LEAD_S:
                self.due_s = self._began_s + upto_s - LEAD_S
                break
            self._ready.popleft()
            self._sent_s = upto_s
            news.append(ReplySound(self.item, piece))
        return news

    def _is_heard(self, now_s: float) -> bool:
        """Whether the reply is complete and played; speech before that may cut its last word."""
        if not self._is_read or self._ready or not (self._voice is None or self._voice.is_done):
            return False
        left_s = self._sent_s - self._heard_s(now_s)
        if left_s > 0.0:
            self.due_s = now_s + left_s
        return left_s <= 0.0

    def _heard_s(self, now_s: float) -> float:
        """Seconds of sound that a client has certainly played; while paused it plays what it has."""
        return max(0.0, min(self._sent_s, now_s - self._began_s - JITTER_S))

    def _written(self, piece: Spoken) -> ReplyText:
        if self._voice is None:
            self.entry.text += piece.text
            return ReplyText(self.item, piece.text)
        space = " " if self._has_written else ""
        self._has_written = True
        self.entry.add_word(piece.text, round(1000 * piece.start_s), round(1000 * piece.stop_s))
        return ReplyText(self.item, space + piece.text, round(1000 * (piece.stop_s - piece.start_s)))

    @property
    def _rate(self) -> int:
        assert self._voice is not None
        return self._voice.rate

    def _played_s(self, now_s: float) -> float:
        """Seconds of sound that a client has played, if it plays sound at once."""
        return (self._held_s if self.is_held else now_s) - self._began_s
