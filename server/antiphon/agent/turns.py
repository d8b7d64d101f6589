"""A pure state machine of turns: when a caller's turn ends, and when a reply begins, sounds, waits or is cut.

Its clock is the caller's audio: blocks of 10 ms that are loud or not. A recogniser's words and the progress
of a reply are further inputs; each input returns the resulting actions, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

BLOCK_MS: Final = 10
ONSET_MS: Final = 50
"""Milliseconds of continuous sound that begin speech: a click is shorter."""

GAP_MS: Final = 80
"""Longest quiet in milliseconds that is still within a word."""

HOLD_MS: Final = 150
"""Milliseconds of speech during a reply that pause its sound. By then the client has at most 160 ms of sound
ahead.
"""

BACKCHANNEL_MS: Final = 400
"""Milliseconds of speech during a reply that cut it. A word that is not a backchannel also cuts it."""

BACKCHANNELS: Final = frozenset(
    {"ah", "aha", "hm", "hmm", "mhm", "mm", "mmhm", "oh", "ok", "okay", "right", "sure", "uh", "uhuh", "yeah"}
    | {"yep", "yes"}
)

PAUSE_FRAMES: Final = 3
"""Number of frames over which a recogniser's probability of a pause is averaged."""


@dataclass(frozen=True, slots=True)
class TurnRules:
    """The rules for turns.

    A turn ends after ``silence_ms`` of quiet, or when the mean probability of a pause exceeds ``pause``.
    After ``suspect_ms`` of quiet the agent sends a request early. With ``is_manual`` only the client ends
    turns. With ``creates`` an ended turn gets a reply. With ``interrupts`` speech cuts a reply. After
    ``idle_ms`` without speech on either side the text model may speak once; 0 means never.
    """

    silence_ms: int = 500
    suspect_ms: int = 200
    pause: float = 0.6
    is_manual: bool = False
    creates: bool = True
    interrupts: bool = True
    idle_ms: int = 0


class CallerState(StrEnum):
    """The state of the caller."""

    QUIET = "quiet"
    SPEAKING = "speaking"
    SUSPECTED = "suspected"  # quiet for a while, and the turn may be over


class ReplyState(StrEnum):
    """The state of the agent's reply."""

    NONE = "none"
    EARLY = "early"  # requested before the turn was over: not played, and not in the history
    THINKING = "thinking"  # requested, nothing was played yet
    SPEAKING = "speaking"
    HELD = "held"  # its sound is paused: the caller's speech may be a backchannel


@dataclass(frozen=True, slots=True)
class SpeechBegan:
    """The caller's speech began at ``ms`` of the caller's audio."""

    ms: int


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The caller's turn ended at ``ms`` of the caller's audio; ``is_manual``: the client ended it."""

    ms: int
    is_manual: bool = False


@dataclass(frozen=True, slots=True)
class FlushRecogniser:
    """Flush the recogniser; :meth:`TurnMachine.recogniser_flushed` with this number reports the end of
    the flush.
    """

    number: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Request a reply; if ``is_early``, it waits for :class:`Release` or :class:`Drop`."""

    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Use the early reply."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Discard the early reply."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Pause the reply's sound."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Continue the reply's paused sound."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Cut the reply at the position of playback; ``by_caller`` means by speech, not by the client."""

    by_caller: bool = True


@dataclass(frozen=True, slots=True)
class FallIdle:
    """Both sides were silent for a while: request a reply, which may be empty, from the text model."""


TurnAction: TypeAlias = (
    SpeechBegan | TurnEnded | FlushRecogniser | Ask | Release | Drop | Hold | Continue | Interrupt | FallIdle
)


class TurnMachine:
    """The turns of one call. ``is_flushing``: the :class:`FlushRecogniser` with ``number`` is pending."""

    def __init__(self, rules: TurnRules) -> None:
        """Start in silence."""
        self.rules = rules
        self.caller, self.reply = CallerState.QUIET, ReplyState.NONE
        self.now_ms = 0
        self._loud_ms = self._quiet_ms = 0  # consecutive milliseconds
        self._run_ms: int | None = None  # where continuous speech began
        self._turn_end_ms = 0
        self._forgotten: deque[tuple[int, int]] = deque(maxlen=8)  # withdrawn by the client, in ms
        self._has_words = self._is_out = False  # of the turn: words, and whether all of them are transcribed
        self.number = 0
        self.is_flushing = False
        self._wants = False  # an answer is due once the words are transcribed and the last reply is over
        self._may_be_empty = False  # and also if there are no words
        self._pauses: deque[float] = deque(maxlen=PAUSE_FRAMES)
        self._idle_ms = 0
        self._was_idle = False

    @property
    def has_reply(self) -> bool:
        """Whether a reply was requested or is playing; an early reply does not count."""
        return self.reply in (ReplyState.THINKING, ReplyState.SPEAKING, ReplyState.HELD)

    def change(self, rules: TurnRules) -> list[TurnAction]:
        """Use other rules from now on; current speech is dropped if turns become manual."""
        self.rules = rules
        if not rules.is_manual:
            return []
        actions = self._drop()
        self.caller, self._run_ms = CallerState.QUIET, None
        return [*actions, *self._let_go()]

    def heard(self, loud: Sequence[bool]) -> list[TurnAction]:
        """Process the caller's next audio: whether each of its blocks of ``BLOCK_MS`` is loud."""
        actions: list[TurnAction] = []
        for is_loud in loud:
            self.now_ms += BLOCK_MS
            self._loud_ms = self._loud_ms + BLOCK_MS if is_loud else 0
            self._quiet_ms = 0 if is_loud else self._quiet_ms + BLOCK_MS
            if not self.rules.is_manual:
                actions += self._follow_voice()
            actions += self._follow_idle()
        return actions

    def paused(self, probability: float) -> list[TurnAction]:
        """Process the recogniser's probability of a pause for the next frame."""
        self._pauses.append(probability)
        is_sure = len(self._pauses) == PAUSE_FRAMES and sum(self._pauses) > PAUSE_FRAMES * self.rules.pause
        if self.caller is CallerState.QUIET or not is_sure or self._quiet_ms < GAP_MS:
            return []
        return self._end()

    def word(self, text: str, start_ms: int) -> list[TurnAction]:
        """Process a word from the recogniser that began at ``start_ms``."""
        self._idle_ms = 0
        if self.rules.is_manual or self.caller is not CallerState.QUIET or start_ms < self._turn_end_ms:
            self._has_words = True
            return self._drop()  # an early request lacks this word
        if self.has_reply and self.rules.interrupts:
            if "".join(filter(str.isalpha, text.lower())) in BACKCHANNELS:
                return []
            actions = [*self._begin(start_ms), *self._interrupt()]
        else:
            actions = self._begin(start_ms)
        self._has_words = True
        return [*actions, *self._follow_silence()]  # it may be transcribed long after it was spoken

    def recogniser_flushed(self, number: int) -> list[TurnAction]:
        """Report that all speech before the :class:`FlushRecogniser` of this number is transcribed."""
        if number != self.number or not self.is_flushing:
            return []
        self.is_flushing, self._is_out = False, True
        if self.caller is CallerState.SUSPECTED and self.rules.creates and self._has_words:
            if self.reply is ReplyState.NONE and not self._wants:
                self.reply = ReplyState.EARLY
                return [Ask(is_early=True)]
            return []
        return self._answer()

    def commit(self) -> list[TurnAction]:
        """End the caller's turn, at the client's request."""
        actions = [*self._drop(), *self._let_go()]
        self.caller, self._run_ms, self._turn_end_ms = CallerState.QUIET, None, self.now_ms
        return [*actions, TurnEnded(self.now_ms, is_manual=True), *self._flush_recogniser()]

    def forget(self) -> list[TurnAction]:
        """Withdraw the caller's speech since the last turn, at the client's request."""
        self._forgotten.append((self._turn_end_ms, self.now_ms))
        if self.caller is not CallerState.QUIET:
            self._has_words &= self._wants  # those of an earlier turn that is still to be answered
        return self._drop()

    def is_forgotten(self, start_ms: int) -> bool:
        """Whether a word that began at ``start_ms`` was withdrawn."""
        return any(begin_ms <= start_ms < end_ms for begin_ms, end_ms in self._forgotten)

    def create(self) -> list[TurnAction]:
        """Request a reply, at the client's request; it begins once all committed speech is transcribed."""
        actions = self._drop()
        self._wants = self._may_be_empty = True
        return [*actions, *self._answer()]

    def cancel(self) -> list[TurnAction]:
        """Cancel the current or the due reply, at the client's request."""
        self._wants = False
        return [*self._drop(), *(self._interrupt(by_caller=False) if self.has_reply else [])]

    def sounds(self) -> None:
        """Report that the first sound of the reply was sent."""
        if self.reply is ReplyState.THINKING:
            self.reply = ReplyState.SPEAKING

    def over(self) -> list[TurnAction]:
        """End a reply that has failed or was played to its end."""
        self.reply, self._idle_ms = ReplyState.NONE, 0
        return self._answer()

    def _follow_voice(self) -> list[TurnAction]:
        if self._run_ms is None:
            if self._loud_ms < ONSET_MS:
                return self._follow_silence()
            self._run_ms = self.now_ms - self._loud_ms
            if self.caller is CallerState.SUSPECTED:
                self.caller, self._is_out = CallerState.SPEAKING, False
                return self._drop()
            cuts = self.has_reply and self.rules.interrupts
            return [] if cuts or self.caller is CallerState.SPEAKING else self._begin(self._run_ms)
        is_turn = self.caller is not CallerState.QUIET or (self.has_reply and self.rules.interrupts)
        if not (is_turn or self._quiet_ms):  # it began during a reply that is over
            return [*self._let_go(), *self._begin(self._run_ms)]
        if self._quiet_ms >= GAP_MS:
            self._run_ms = None
            return [*self._let_go(), *self._follow_silence()]
        cuts = self.has_reply and self.rules.interrupts and self.caller is CallerState.QUIET
        spoken_ms = self.now_ms - self._run_ms - self._quiet_ms
        if cuts and self.reply is ReplyState.SPEAKING and spoken_ms >= HOLD_MS:
            self.reply = ReplyState.HELD
            return [Hold()]
        is_heard = self.reply in (ReplyState.SPEAKING, ReplyState.HELD)
        if cuts and (spoken_ms > BACKCHANNEL_MS or (spoken_ms >= HOLD_MS and not is_heard)):
            return [*self._begin(self._run_ms), *self._interrupt()]
        return []

    def _follow_silence(self) -> list[TurnAction]:
        rules = self.rules
        if self.caller is CallerState.QUIET:
            return []
        if self._quiet_ms >= rules.silence_ms:
            return self._end()
        if self.caller is CallerState.SPEAKING and self._quiet_ms >= rules.suspect_ms:
            self.caller = CallerState.SUSPECTED
            return self._flush_recogniser()
        return []

    def _follow_idle(self) -> list[TurnAction]:
        is_loud = self._loud_ms >= ONSET_MS
        is_busy = is_loud or self.caller is not CallerState.QUIET or self.reply is not ReplyState.NONE
        self._was_idle &= not is_loud
        self._idle_ms = 0 if is_busy or self._wants or self.is_flushing else self._idle_ms + BLOCK_MS
        if self._was_idle or not 0 < self.rules.idle_ms <= self._idle_ms:
            return []
        self._was_idle, self.reply = True, ReplyState.THINKING
        return [FallIdle()]

    def _begin(self, ms: int) -> list[TurnAction]:
        """Begin the caller's turn; an answer that is due to the last turn waits for the end of this one."""
        self.caller = CallerState.SPEAKING
        self._is_out = self.is_flushing = False
        self._was_idle = False
        self._pauses.clear()
        return [SpeechBegan(ms)]

    def _flush_recogniser(self) -> list[TurnAction]:
        self.number += 1
        self.is_flushing, self._is_out = True, False
        return [FlushRecogniser(self.number)]

    def _end(self) -> list[TurnAction]:
        """End the turn: its reply was requested, or waits for the last words."""
        self.caller, self._run_ms, self._turn_end_ms = CallerState.QUIET, None, self.now_ms
        self._pauses.clear()
        ended: list[TurnAction] = [TurnEnded(self.now_ms)]
        if self.reply is ReplyState.EARLY:
            self.reply, self._has_words = ReplyState.THINKING, False
            return [*ended, Release()]
        self._wants |= self.rules.creates
        if self._is_out:
            return [*ended, *self._answer()]
        return ended if self.is_flushing else [*ended, *self._flush_recogniser()]

    def _answer(self) -> list[TurnAction]:
        """Request a reply, if one is due and nothing is outstanding."""
        is_speaking = self.caller is not CallerState.QUIET
        if not self._wants or self.is_flushing or is_speaking or self.reply is not ReplyState.NONE:
            return []
        has_something = self._has_words or self._may_be_empty
        self._wants = self._has_words = self._may_be_empty = False
        if not has_something:
            return []
        self.reply = ReplyState.THINKING
        return [Ask()]

    def _drop(self) -> list[TurnAction]:
        if self.reply is not ReplyState.EARLY:
            return []
        self.reply = ReplyState.NONE
        return [Drop()]

    def _let_go(self) -> list[TurnAction]:
        if self.reply is not ReplyState.HELD:
            return []
        self.reply = ReplyState.SPEAKING
        return [Continue()]

    def _interrupt(self, *, by_caller: bool = True) -> list[TurnAction]:
        self.reply, self._idle_ms = ReplyState.NONE, 0
        return [Interrupt(by_caller)]
