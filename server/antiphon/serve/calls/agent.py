"""A voice agent as a call's participant: a recogniser's row, any text model, and a synthesiser's row.

:mod:`antiphon.agent.turns` decides whose turn it is; this class executes the decisions. The caller's audio is
its clock; only the pace of a reply's sound follows the engine's clock.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from antiphon.agent import turns as acts
from antiphon.agent.chat_stream import Piece, ReplyEnded, TextPiece, TokensUsed
from antiphon.agent.history import History, HistoryEntry, Role
from antiphon.agent.text_model import TextModel, TextRequest
from antiphon.agent.turns import CallerState, TurnAction, TurnMachine
from antiphon.agent.values import (
    CANCELLED,
    COMPLETED,
    INTERRUPTED,
    AgentNews,
    AgentRequest,
    AgentSettings,
    AskReply,
    AudioHeard,
    CancelReply,
    Configure,
    EndTurn,
    ForgetTurn,
    PutEntry,
    RemoveEntry,
    ReplaySound,
    ReplyOver,
    ReplySound,
    ReplyText,
    ToolCalled,
    Truncate,
    TurnStarted,
    TurnStopped,
    TurnWritten,
    WordHeard,
)
from antiphon.audio.clock import InputClock
from antiphon.audio.pcm import FloatArray
from antiphon.audio.vad import Loudness
from antiphon.errors import AntiphonError
from antiphon.ipc.engine_client import Notify
from antiphon.ipc.values import SessionState, SessionStats
from antiphon.models.prompt import Prompt
from antiphon.models.transcript import FrameHeard, Marked, Word
from antiphon.serve.calls.agent_reply import Reply
from antiphon.serve.calls.participant import Participant, StalledSince
from antiphon.serve.calls.synthesiser import Synthesiser
from antiphon.serve.calls.transcriber import Transcriber
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.operator.metrics import AgentMetrics

MAX_NEWS: Final = 256
"""Maximum number of events that wait while the client does not read; beyond it the client's audio waits too.
"""

PAUSE_HEAD: Final = 2
"""The index of the probability of a two-second pause, as in Kyutai's own agent."""

IDLE_TEXT: Final = "The caller is silent for a while now. Say one short sentence if that helps, else nothing."


@dataclass(frozen=True, slots=True, eq=False)
class AgentParts:
    """The parts that the calls of one voice agent share: its models, its settings and its metrics. The agent
    first speaks ``greeting``; if the text model fails, it speaks ``sorry``.
    """

    name: str
    stt: ServedModel
    tts: ServedModel
    voice: str | None
    text_model: TextModel
    settings: AgentSettings
    metrics: AgentMetrics
    greeting: str = ""
    sorry: str = ""
    max_history_tokens: int = 4000

    async def check_room(self) -> None:
        """Check that each model has a row for a caller.

        Raises:
            ServerFullError, DrainingError, SessionFailedError: a model has no free row.
        """
        for model in (self.stt, self.tts):
            await model.engine.check_room(0.0)


class Agent(Participant[AgentNews]):
    """The voice agent of one call. ``tokens_in`` and ``tokens_out`` count the tokens of its text model so
    far.
    """

    def __init__(
        self,
        parts: AgentParts,
        clock: Callable[[], float],
        *,
        voice: Prompt | None,
        new_id: Callable[[str], str],
        fills_gaps: bool = False,
    ) -> None:
        """Prepare an agent with a ``voice``; ``new_id`` makes ids for turns and replies.

        With ``fills_gaps`` silence replaces overdue audio of the caller.

        Raises:
            UnsupportedError: one of its models has no tokenizer.
        """
        self.parts, self.name = parts, parts.name
        self.voice_spec = parts.tts.engine.info.spec
        self._clock, self._new_id, self._settings = clock, new_id, parts.settings
        self._asr, self._tts = Transcriber(parts.stt, clock), Synthesiser(parts.tts, clock, voice)
        self.lead_frames = self._asr.lead_frames
        self._loudness = Loudness(parts.stt.checkpoint.spec.sample_rate)
        self._fills_gaps = fills_gaps
        self._input: InputClock | None = None
        self._turns = TurnMachine(parts.settings.turns)
        self._history = History(parts.max_history_tokens)
        self._news: list[AgentNews] = []
        self._reply: Reply | None = None
        self._asked: AskReply | None = None  # the requested reply, if any
        self._item: str | None = None  # item of the caller's latest turn
        self._words: list[str] = []  # of it
        self._owes_words = False  # of a turn that has ended
        self._ended_s = self._flushed_s = math.nan
        self._again_s = -math.inf  # when another connection continued the call
        self._has_begun = self._has_greeted = False
        self._wake: Notify = lambda: None

    async def open(self, notify: Notify) -> None:
        """Request a row of each model, all or none."""
        self._wake = notify
        await self._asr.open(notify)
        try:
            await self._tts.open(notify)
        except BaseException:
            self._asr.close()
            raise

    @property
    def id(self) -> str:
        return self._asr.id

    @property
    def state(self) -> SessionState:
        states = (self._asr.state, self._tts.state)
        if SessionState.CLOSED in states:
            return SessionState.CLOSED
        if self._has_begun or states == (SessionState.ACTIVE, SessionState.ACTIVE):
            return SessionState.ACTIVE
        return SessionState.PRIMING

    @property
    def reason(self) -> AntiphonError | None:
        return self._asr.reason or self._tts.reason

    @property
    def is_idle(self) -> bool:
        return self._reply is None and not self._news

    @property
    def waits_for_us(self) -> bool:
        return self._reply is not None or self._asr.waits_for_us

    def stats(self) -> SessionStats:
        """Statistics: the recogniser's input frames, and the frames of sound sent."""
        return replace(self._asr.stats(), frames_out=self._tts.stats().frames_out)

    def begin(self, now_s: float) -> None:
        self._has_begun = True
        if self._fills_gaps:
            spec = self.parts.stt.checkpoint.spec
            self._input = InputClock(spec.sample_rate, spec.frame_samples, now_s)
        if self.parts.greeting:
            self._do(self._turns.create(), now_s)

    def put(self, pcm: FloatArray, received_s: float) -> None:
        self._listen(pcm if self._input is None else self._input.arrive(pcm, received_s), received_s)

    def _listen(self, pcm: FloatArray, now_s: float) -> None:
        """Process these samples."""
        if not pcm.size:
            return
        self._asr.put(pcm, now_s)
        self._wake()
        self._do(self._turns.heard(self._loudness.feed(pcm, self._settings.level_dbfs)), now_s)
        match self._news[-1:]:
            case [AudioHeard(samples)]:
                self._news[-1] = AudioHeard(samples + pcm.size)
            case _:
                self._news.append(AudioHeard(pcm.size))
        self.is_full = self._asr.is_full or len(self._news) > MAX_NEWS

    def read_prompt(self, prompt: Prompt) -> None:
        self._tts.read_prompt(prompt)

    def finish(self, now_s: float) -> None:
        """End the agent; the rest of the current reply is not sent."""
        self._do(self._turns.cancel(), now_s)
        self.is_done = True
        self._wake()

    def close(self, error: AntiphonError | None = None) -> None:
        if self._reply is not None:
            self._reply.over(CANCELLED)
        self._asr.close(error)
        self._tts.close(error)

    def obey(self, request: AgentRequest) -> None:
        """Execute an action of the client's protocol."""
        now_s = self._clock()
        match request:
            case Configure(settings):
                self._settings = settings
                if settings.turns != self._turns.rules:
                    self._do(self._turns.change(settings.turns), now_s)
            case EndTurn(item):
                self._item = item
                self._put_words()
                self._do(self._turns.commit(), now_s)
            case ForgetTurn():
                if not self._owes_words:  # else they belong to a committed turn
                    self._words = []
                    if self._item is not None:
                        self._history.remove(self._item)
                self._do(self._turns.forget(), now_s)
            case AskReply():
                self._asked = request
                self._do(self._turns.create(), now_s)
            case CancelReply():
                self._asked = None
                self._do(self._turns.cancel(), now_s)
            case PutEntry(item, entry, after):
                self._history.put(item, entry, after=after)
            case RemoveEntry(item):
                self._history.remove(item)
            case Truncate(item, heard_ms):
                self._history.cut(item, heard_ms)
            case ReplaySound(seconds, item, lost_ms):
                self._again_s = now_s
                self._ended_s = self._flushed_s = math.nan  # the wait for a client is not the agent's
                if self._reply is not None and self._reply.item == item:
                    self._reply.rewind(seconds, now_s)
                    self._reply.entry.lose(*lost_ms)
                elif item in self._history:
                    self._history[item].lose(*lost_ms)
        self._wake()

    def advance(self, now_s: float, *, may_take: bool) -> Sequence[AgentNews]:
        if self._input is not None:
            self._listen(self._input.look(now_s), now_s)
        self._hear(now_s)
        if self._reply is not None:
            self._follow(self._reply, now_s, may_take=may_take)
        self.words = self._asr.words + self._tts.words
        sound_s = math.inf if self._reply is None else self._reply.due_s
        input_s = math.inf if self._input is None else self._input.due_s
        self.due_s = min(self._asr.due_s, sound_s, input_s)
        news: list[AgentNews] = []
        if may_take:
            news, self._news = self._news, news
        self.is_full = self._asr.is_full or len(self._news) > MAX_NEWS
        return news

    def sent(self, reply: AgentNews, now_s: float, stalled_s: StalledSince) -> float:
        return 0.0

    def _hear(self, now_s: float) -> None:
        """Process the recogniser's new words."""
        for heard in self._asr.advance(now_s, may_take=True):
            self._asr.sent(heard, now_s, lambda since_s: max(0.0, self._again_s - since_s))
            for event in heard.events:
                match event:
                    case Word() as word:
                        self._write(word, now_s)
                    case FrameHeard(_, pauses) if len(pauses) > PAUSE_HEAD:
                        self._do(self._turns.paused(pauses[PAUSE_HEAD]), now_s)
                    case Marked(number):
                        is_asked = number == self._turns.number and self._turns.is_flushing
                        if is_asked and not math.isnan(self._flushed_s):
                            self.parts.metrics.record_last_word(now_s - self._flushed_s)
                        self._do(self._turns.recogniser_flushed(number), now_s)

    def _write(self, word: Word, now_s: float) -> None:
        """Add a word to the caller's turn; a backchannel belongs to no turn."""
        turns, start_ms = self._turns, round(1000 * word.start_s)
        if turns.is_forgotten(start_ms):
            return
        self._do(turns.word(word.text, start_ms), now_s)
        is_over = turns.caller is CallerState.QUIET and not turns.is_flushing
        if is_over and not turns.rules.is_manual:
            return
        self._words.append(word.text)
        self._put_words()
        self._news.append(WordHeard(word.text, start_ms, round(1000 * word.end_s)))

    def _report_written(self) -> None:
        """Report that the turn that ended has all its words."""
        if self._owes_words:
            self._owes_words = False
            self._news.append(TurnWritten())
            self._item, self._words = None, []

    def _put_words(self) -> None:
        """Write the caller's words so far into the history."""
        if self._item is not None and self._words:
            text = " ".join(self._words)
            if self._item in self._history:
                self._history[self._item].text = text
            else:
                self._history.put(self._item, HistoryEntry(Role.USER, text))

    def _do(self, actions: Sequence[TurnAction], now_s: float) -> None:
        """Execute the decisions about turns."""
        for action in actions:
            match action:
                case acts.SpeechBegan(ms):
                    self._report_written()
                    self._item, self._words = self._new_id("item"), []
                    self._news.append(TurnStarted(self._item, ms))
                case acts.TurnEnded(ms, is_manual):
                    self._ended_s, self._owes_words = now_s, True
                    if not is_manual:
                        self._news.append(TurnStopped(ms))
                case acts.FlushRecogniser(number):
                    self._flushed_s = now_s
                    self._asr.flush_recogniser(number)
                case acts.Ask(is_early):
                    self._ask(is_early=is_early)
                case acts.FallIdle():
                    self._asked = AskReply(self._settings)
                    self._ask(note=IDLE_TEXT)
                case acts.Release() if self._reply is not None:
                    self._reply.release()
                case acts.Hold() if self._reply is not None:
                    self._reply.hold(now_s)
                case acts.Continue() if self._reply is not None:
                    self._reply.resume(now_s)
                case acts.Drop():
                    self._leave()
                case acts.Interrupt(by_caller) if self._reply is not None:
                    self._history.cut(self._reply.item, self._reply.heard_ms(now_s))
                    self._report_over(self._reply.over(INTERRUPTED if by_caller else CANCELLED))
                    self._leave()
        if not self._turns.is_flushing:
            self._report_written()
            if self._reply is None:
                self._ended_s = math.nan  # the turn has no reply whose first sound could be measured

    def _ask(self, *, is_early: bool = False, note: str = "") -> None:
        """Begin a reply, either a requested one or one to the caller's turn."""
        asked, self._asked = self._asked, None
        settings = self._settings if asked is None else asked.settings
        instructions = "\n\n".join(filter(None, (settings.instructions, note)))
        messages = self._history.messages(instructions)
        if asked is not None and asked.entries is not None:
            own = History(self.parts.max_history_tokens)
            for number, entry in enumerate(asked.entries):
                if isinstance(entry, HistoryEntry):
                    own.put(str(number), entry)
                elif entry in self._history:
                    own.put(entry, self._history[entry])
            messages = own.messages(instructions)
        request = TextRequest(
            messages,
            settings.max_tokens,
            settings.tools,
            settings.tool_choice,
            parallel_tool_calls=settings.parallel_tool_calls,
        )
        greets, self._has_greeted = not self._has_greeted and bool(self.parts.greeting), True
        self._reply = Reply(
            _saying(self.parts.greeting) if greets else self._measured(request),
            self._tts if settings.has_sound else None,
            asked=asked,
            is_early=is_early,
            sorry=self.parts.sorry,
            new_id=self._new_id,
            wake=self._wake,
        )

    def _follow(self, reply: Reply, now_s: float, *, may_take: bool) -> None:
        """Take the new parts of the reply, and record the spoken words."""
        if reply.has_text and not (reply.is_early or reply.is_measured):
            reply.is_measured = True
            if not math.isnan(self._ended_s):
                self.parts.metrics.written(now_s - self._ended_s)
        had_sound = reply.has_sound
        for news in reply.advance(now_s, may_take=may_take):
            if isinstance(news, ReplyText) and reply.is_kept and reply.item not in self._history:
                self._history.put(reply.item, reply.entry)
            if isinstance(news, ToolCalled) and reply.is_kept:
                call = HistoryEntry(Role.CALL, "".join(news.pieces), call_id=news.call_id, name=news.name)
                self._history.put(news.item, call)
            if isinstance(news, ReplySound) and not had_sound:
                had_sound = True
                self._turns.sounds()
                if not math.isnan(self._ended_s):
                    self.parts.metrics.sounded(now_s - self._ended_s)
                self._ended_s = math.nan
            if isinstance(news, ReplyOver):
                self._report_over(news)
                self._leave()
                self._do(self._turns.over(), now_s)
            else:
                self._news.append(news)

    async def _measured(self, request: TextRequest) -> AsyncGenerator[Piece]:
        """The text model's reply; its begin is measured and its tokens count, also for a cut reply."""
        asked_s, has_begun, used = self._clock(), False, TokensUsed(0, 0)
        async with contextlib.aclosing(self.parts.text_model.reply(request)) as pieces:
            async for piece in pieces:
                if not has_begun:
                    has_begun = True
                    self.parts.metrics.record_first_token(self._clock() - asked_s)
                if isinstance(piece, TokensUsed):  # some servers send it with each piece, growing
                    read = max(0, piece.tokens_in - used.tokens_in)
                    written = max(0, piece.tokens_out - used.tokens_out)
                    used = piece
                    self.tokens_in += read
                    self.tokens_out += written
                    self.parts.metrics.used(read, written)
                yield piece

    def _report_over(self, over: ReplyOver) -> None:
        self.parts.metrics.ended(over.outcome)
        self._news.append(over)

    def _leave(self) -> None:
        """End the reply; the synthesiser restarts for the next."""
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.over(COMPLETED)
            if reply.is_spoken:
                self._tts.restart()


async def _saying(text: str) -> AsyncGenerator[Piece]:
    """A text in the form of a text model's reply."""
    yield TextPiece(text)
    yield ReplyEnded()
