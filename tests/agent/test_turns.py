"""Turn taking: single scenes, and invariants over thousands of random schedules."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from antiphon.agent.turns import (
    BLOCK_MS,
    Ask,
    CallerState,
    Continue,
    Drop,
    FallIdle,
    FlushRecogniser,
    Hold,
    Interrupt,
    Release,
    ReplyState,
    SpeechBegan,
    TurnAction,
    TurnEnded,
    TurnMachine,
    TurnRules,
)

RULES = TurnRules()


def voice(turns: TurnMachine, ms: int) -> list[TurnAction]:
    return turns.heard([True] * (ms // BLOCK_MS))


def quiet(turns: TurnMachine, ms: int) -> list[TurnAction]:
    return turns.heard([False] * (ms // BLOCK_MS))


def asked(turns: TurnMachine) -> None:
    """Bring the turns to a reply that the caller hears."""
    voice(turns, 600)
    quiet(turns, 200)
    turns.word("hello", 100)
    turns.recogniser_flushed(1)
    quiet(turns, 300)
    turns.sounds()
    assert turns.reply is ReplyState.SPEAKING


def test_a_turn_ends_with_silence_and_its_reply_was_asked_for_before() -> None:
    turns = TurnMachine(RULES)
    assert voice(turns, 600) == [SpeechBegan(0)]
    assert quiet(turns, 190) == []
    assert quiet(turns, 10) == [FlushRecogniser(1)]
    assert turns.word("hello", 100) == []
    assert turns.recogniser_flushed(1) == [Ask(is_early=True)]
    assert quiet(turns, 290) == []
    assert quiet(turns, 10) == [TurnEnded(1100), Release()]


def test_an_early_reply_never_was_where_the_caller_continues() -> None:
    turns = TurnMachine(RULES)
    voice(turns, 600)
    quiet(turns, 200)
    turns.word("hello", 100)
    turns.recogniser_flushed(1)
    assert voice(turns, 100) == [Drop()]
    assert turns.caller is CallerState.SPEAKING
    assert quiet(turns, 200) == [FlushRecogniser(2)]
    assert turns.recogniser_flushed(1) == []  # what was brought out before is not all of the turn
    assert quiet(turns, 300) == [TurnEnded(1400)]
    assert turns.recogniser_flushed(2) == [Ask()]


def test_a_likely_pause_ends_a_turn_before_its_silence_does() -> None:
    turns = TurnMachine(RULES)
    voice(turns, 600)
    assert [turns.paused(0.9) for _ in range(3)][-1] == []  # the caller is loud
    quiet(turns, 100)
    assert turns.paused(0.9) == [TurnEnded(700), FlushRecogniser(1)]
    turns.word("hello", 100)
    assert turns.recogniser_flushed(1) == [Ask()]


def test_one_likely_pause_among_others_ends_nothing() -> None:
    turns = TurnMachine(RULES)
    voice(turns, 600)
    quiet(turns, 100)
    assert [turns.paused(it) for it in (0.95, 0.1, 0.7)] == [[], [], []]


def test_a_noise_without_a_word_is_not_answered() -> None:
    turns = TurnMachine(RULES)
    voice(turns, 100)
    quiet(turns, 500)
    assert turns.recogniser_flushed(1) == []
    assert turns.reply is ReplyState.NONE


def test_speech_holds_the_sound_and_cuts_it_once_it_is_no_backchannel() -> None:
    turns = TurnMachine(RULES)
    asked(turns)
    assert voice(turns, 140) == []
    assert voice(turns, 10) == [Hold()]
    assert voice(turns, 250) == []
    start_ms = turns.now_ms - 400
    assert voice(turns, 10) == [SpeechBegan(start_ms), Interrupt()]


def test_a_backchannel_lets_the_reply_continue_where_it_was_held() -> None:
    turns = TurnMachine(RULES)
    asked(turns)
    assert voice(turns, 300) == [Hold()]
    assert quiet(turns, 80) == [Continue()]
    assert turns.word("Mhm,", turns.now_ms - 300) == []
    assert turns.reply is ReplyState.SPEAKING


def test_a_word_that_is_written_after_the_silence_behind_it_ends_its_turn_without_more_audio() -> None:
    turns = TurnMachine(RULES)
    asked(turns)
    voice(turns, 100)
    quiet(turns, 600)
    start_ms = turns.now_ms - 700
    ended = [TurnEnded(turns.now_ms), FlushRecogniser(turns.number + 1)]
    assert turns.word("stop", start_ms) == [SpeechBegan(start_ms), Interrupt(), *ended]
    assert turns.recogniser_flushed(turns.number) == [Ask()]


def test_a_short_word_that_is_no_backchannel_cuts_the_reply() -> None:
    turns = TurnMachine(RULES)
    asked(turns)
    voice(turns, 150)
    quiet(turns, 400)
    start_ms = turns.now_ms - 550
    assert turns.word("Stop!", start_ms) == [
        SpeechBegan(start_ms),
        Interrupt(),
        FlushRecogniser(turns.number),
    ]


def test_a_late_word_of_the_turn_before_cuts_nothing() -> None:
    turns = TurnMachine(RULES)
    asked(turns)
    assert turns.word("there", 500) == []
    assert turns.reply is ReplyState.SPEAKING


def test_speech_cuts_nothing_where_it_is_not_to_and_is_answered_after_the_reply() -> None:
    turns = TurnMachine(replace(RULES, interrupts=False))
    asked(turns)
    assert voice(turns, 600) == [SpeechBegan(turns.now_ms - 600)]
    turns.word("and", turns.now_ms - 500)
    assert quiet(turns, 500) == [FlushRecogniser(2), TurnEnded(turns.now_ms)]
    assert turns.recogniser_flushed(2) == []
    assert turns.over() == [Ask()]


@pytest.mark.parametrize("ending", ["over", "cancel", "change"])
def test_speech_that_outlasts_a_reply_is_a_turn(ending: str) -> None:
    turns = TurnMachine(RULES)
    asked(turns)
    assert voice(turns, 140) == []
    start_ms = turns.now_ms - 140
    if ending == "over":
        assert turns.over() == []
    elif ending == "cancel":
        assert turns.cancel() == [Interrupt(by_caller=False)]
    else:
        assert turns.change(replace(RULES, interrupts=False)) == []
    assert quiet(turns, 50) == []
    assert voice(turns, 2000) == [SpeechBegan(start_ms)]
    turns.word("and", start_ms + 100)
    assert [type(it) for it in quiet(turns, 600)] == [FlushRecogniser, TurnEnded]


def test_words_that_a_client_takes_back_are_not_answered_and_later_ones_are() -> None:
    turns = TurnMachine(RULES)
    voice(turns, 600)
    turns.word("secret", 100)
    assert turns.forget() == []
    assert [turns.is_forgotten(ms) for ms in (100, 599, 600)] == [True, True, False]
    quiet(turns, 500)
    assert turns.recogniser_flushed(1) == []
    asked_ms = turns.now_ms
    voice(turns, 600)
    turns.word("hello", asked_ms + 100)
    assert turns.forget() == []
    turns.word("again", turns.now_ms)
    assert quiet(turns, 200) == [FlushRecogniser(2)]
    assert turns.recogniser_flushed(2) == [Ask(is_early=True)]
    assert turns.forget() == [Drop()]  # it was asked with words that are taken back


def test_words_of_a_turn_that_is_committed_are_not_taken_back() -> None:
    turns = TurnMachine(replace(RULES, is_manual=True))
    voice(turns, 500)
    turns.commit()
    voice(turns, 500)
    turns.forget()
    turns.commit()
    assert [turns.is_forgotten(ms) for ms in (100, 499, 500, 999, 1000)] == [False, False, True, True, False]


def test_a_caller_that_talks_by_hand_is_not_taken_to_be_silent() -> None:
    turns = TurnMachine(replace(RULES, is_manual=True, idle_ms=2000))
    for _ in range(10):
        assert voice(turns, 900) == []
        assert quiet(turns, 100) == []
    assert quiet(turns, 1900) == [FallIdle()]


def test_manual_turns_end_with_the_clients_word_and_are_answered_when_it_asks() -> None:
    turns = TurnMachine(replace(RULES, is_manual=True))
    assert voice(turns, 900) == []
    assert quiet(turns, 900) == []
    assert turns.commit() == [TurnEnded(1800, is_manual=True), FlushRecogniser(1)]
    assert turns.create() == []
    turns.word("hello", 300)
    assert turns.recogniser_flushed(1) == [Ask()]
    assert turns.create() == []
    assert turns.cancel() == [Interrupt(by_caller=False)]
    assert turns.create() == [Ask()]


def test_the_text_model_may_speak_once_to_a_silent_caller() -> None:
    turns = TurnMachine(replace(RULES, idle_ms=2000))
    assert quiet(turns, 1990) == []
    assert quiet(turns, 10) == [FallIdle()]
    turns.sounds()
    assert turns.over() == []
    assert quiet(turns, 9000) == []
    voice(turns, 300)
    quiet(turns, 500)
    turns.recogniser_flushed(1)
    assert quiet(turns, 2000)[-1] == FallIdle()


class Request:
    """A request to a text model and its sound, as a participant holds them."""

    def __init__(self, *, is_early: bool) -> None:
        self.is_early, self.is_held, self.sounds = is_early, False, False


class World:
    """A participant without models, which does what the turns say and notes what must never be."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rules = TurnRules(
            is_manual=self.chance.random() < 0.15,
            interrupts=self.chance.random() < 0.8,
            creates=self.chance.random() < 0.9,
            idle_ms=self.chance.choice((0, 3000)),
        )
        self.turns = TurnMachine(self.rules)
        self.request: Request | None = None
        self.bringing: list[int] = []
        self.replies = self.turns_ended = 0

    def do(self, actions: Sequence[TurnAction]) -> None:
        for action in actions:
            match action:
                case Ask(is_early):
                    assert self.request is None, "two replies at once"
                    self.request = Request(is_early=is_early)
                case FallIdle():
                    assert self.request is None, "idle beside a reply"
                    self.request = Request(is_early=False)
                case Release():
                    assert self.request is not None
                    assert self.request.is_early
                    self.request.is_early = False
                case Drop():
                    assert self.request is not None
                    assert self.request.is_early
                    assert not self.request.sounds, "a reply that never was, was heard"
                    self.request = None
                case Interrupt():
                    assert self.request is not None
                    assert not self.request.is_early
                    self.request = None
                case Hold():
                    assert self.request is not None
                    assert self.request.sounds
                    assert not self.request.is_held
                    self.request.is_held = True
                case Continue():
                    assert self.request is not None
                    assert self.request.is_held
                    self.request.is_held = False
                case FlushRecogniser(number):
                    self.bringing.append(number)
                case TurnEnded():
                    self.turns_ended += 1
                case SpeechBegan(ms):
                    assert 0 <= ms <= self.turns.now_ms

    def inputs(self) -> Iterator[Sequence[TurnAction]]:
        """One random input after the other."""
        chance, turns = self.chance, self.turns
        is_loud = False
        for _ in range(chance.randint(20, 80)):
            is_loud ^= chance.random() < 0.25
            yield turns.heard([is_loud] * chance.randint(1, 12))
            request = self.request
            if chance.random() < 0.3:
                text = chance.choice(("hello", "yes", "stop"))
                yield turns.word(text, max(0, turns.now_ms - chance.randint(0, 900)))
            if self.bringing and chance.random() < 0.5:
                yield turns.recogniser_flushed(self.bringing.pop(0))
            if chance.random() < 0.3:
                yield turns.paused(chance.random())
            is_same = request is not None and request is self.request
            if is_same and request is not None and not request.is_early and chance.random() < 0.4:
                request.sounds = True
                turns.sounds()
            if chance.random() < 0.03:
                yield turns.cancel()
            if chance.random() < 0.03 and not turns.has_reply:
                yield turns.create()
            if chance.random() < (0.2 if self.rules.is_manual else 0.01):
                yield turns.commit()
            if chance.random() < 0.02:
                yield turns.change(replace(self.rules, is_manual=not turns.rules.is_manual))
            request = self.request
            if request is not None and not (request.is_early or request.is_held) and chance.random() < 0.15:
                self.end_reply()
                yield turns.over()

    def end_reply(self) -> None:
        self.request, self.replies = None, self.replies + 1

    def settle(self) -> None:
        """The caller falls silent, the recogniser writes everything, and replies come to their end."""
        for _ in range(20):
            self.do(self.turns.heard([False] * 20))
            while self.bringing:
                self.do(self.turns.recogniser_flushed(self.bringing.pop(0)))
            if self.request is not None and not (self.request.is_early or self.request.is_held):
                self.end_reply()
                self.do(self.turns.over())


def test_two_thousand_random_calls_have_one_reply_at_a_time_and_leave_none_behind() -> None:
    replies = ended = 0
    for seed in range(2000):
        world = World(seed)
        for actions in world.inputs():
            world.do(actions)
            assert (world.request is not None) == (world.turns.reply is not ReplyState.NONE), seed
        world.settle()
        assert world.request is None, seed
        assert world.turns.reply is ReplyState.NONE, seed
        assert world.turns.caller is CallerState.QUIET, seed
        replies, ended = replies + world.replies, ended + world.turns_ended
    assert min(replies, ended) > 3000  # the schedules reach what they are to show


@pytest.mark.parametrize("seed", range(5))
def test_a_call_goes_the_same_way_however_its_audio_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    loud = [it for _ in range(40) for it in [chance.random() < 0.5] * chance.randint(5, 60)]
    whole, cut = TurnMachine(RULES), TurnMachine(RULES)
    together = whole.heard(loud)
    apart: list[TurnAction] = []
    at = 0
    while at < len(loud):
        size = chance.randint(1, 30)
        apart += cut.heard(loud[at : at + size])
        at += size
    assert together == apart
