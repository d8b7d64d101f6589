"""Questions and answers: every word has a token, sums add up, grammars contain every phrasing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lab.train.chains import Chains
from lab.train.domain import FIXED_ANSWERS, NUMBERS, WEIGHTS, Domain
from lab.train.phrasings import PHRASINGS
from lab.train.recogniser import answers_grammar, questions_grammar, without_silence, word_errors
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer


def test_every_word_is_one_token(tokenizer: TalkerTokenizer) -> None:
    words = Domain().words()
    tokens = [tokenizer.encode(word) for word in words]
    assert all(len(one) == 1 for one in tokens)
    assert len({one[0] for one in tokens}) == len(words)
    assert not {EPAD, 1, 2, PAD} & {one[0] for one in tokens}
    assert tokenizer.encode("xylophone") == [EPAD]


def test_sums_are_right_and_every_intent_has_a_weight() -> None:
    domain = Domain()
    assert set(WEIGHTS) == set(PHRASINGS)
    numbers = {word: n for n, word in enumerate(NUMBERS)}
    for fact in domain.facts["add"]:
        a, _, b, _, c = fact.answer.split()
        assert numbers[a] + numbers[b] == numbers[c]


def test_words_in_no_order_are_words_of_questions() -> None:
    domain, rng = Domain(), random.Random(3)
    turns = [domain.draw_words(rng) for _ in range(100)]
    assert {turn.answer for turn in turns} == {""}, "nothing follows: they are only heard"
    assert not any(domain.is_question(turn.question) for turn in turns)
    assert {word for turn in turns for word in turn.question.split()} <= set(domain.words())
    assert len({turn.question for turn in turns}) == 100


def test_word_errors_count_edits() -> None:
    assert word_errors("two plus three", "two plus three") == 0
    assert word_errors("two plus three", "two three") == 1
    assert word_errors("two plus three", "") == 3
    assert word_errors("", "two") == 1
    assert word_errors("a b c d", "b c d a") == 2


def test_grammars_know_every_word() -> None:
    domain = Domain()
    spoken = {word for sentence in domain.answers() for word in sentence.split()}
    grammar = answers_grammar().replace("|", " ").split()
    assert spoken <= set(grammar)
    assert questions_grammar().count("<n>") > 10


def test_chains_add_up() -> None:
    chains, rng = Chains(Domain()), np.random.default_rng(6)
    value = {word: number for number, word in enumerate(NUMBERS)}
    drawn = {chains.draw(rng) for _ in range(3000)}
    assert len(drawn) > 2000
    for words in (sentence.split() for sentence in drawn):
        total = value[words[0]]
        for sign, word in zip(words[1:-2:2], words[2:-2:2], strict=True):
            result = total + (value[word] if sign == "plus" else -value[word])
            assert 0 <= result < len(NUMBERS)
            total = result
        assert words[-2:] == ["is", NUMBERS[total]]


def test_silence_around_what_is_heard_is_cut_off() -> None:
    sound = np.zeros(48_000, np.float32)
    sound[12_000:24_000] = 0.1
    assert without_silence(sound).size == pytest.approx(12_000 + 2 * 2400, abs=480)
    assert (without_silence(sound) == sound[12_000 - 2400 :][: without_silence(sound).size]).all()
    assert without_silence(sound * 0.01).size == sound.size  # nothing audible: all of it


def test_courtesies_are_asked_in_pairs_that_are_not_held_out() -> None:
    asked = PHRASINGS["goodbye"].trained
    assert {"see you later good night", "good night"} <= set(asked)
    assert "goodbye good night" in set(PHRASINGS["goodbye"].held_out) - set(asked)


def test_no_way_to_ask_holds_a_held_out_one_or_says_please_twice() -> None:
    kept = [f" {phrase} " for ways in PHRASINGS.values() for phrase in ways.held_out]
    trained = [phrase for ways in PHRASINGS.values() for phrase in ways.trained]
    assert not [phrase for phrase in trained for way in kept if way in f" {phrase} "]
    assert not [phrase for phrase in trained if phrase.split().count("please") > 1]
    courteous = (phrase for name in FIXED_ANSWERS if name != "name" for phrase in PHRASINGS[name].trained)
    assert not [phrase for phrase in courteous if "please" in phrase]
    for ways in PHRASINGS.values():
        assert set(ways.plain) <= set(ways.trained)


def test_every_question_has_one_answer() -> None:
    domain, answers = Domain(), dict[str, str]()
    for intent, ways in PHRASINGS.items():
        for fact in domain.facts[intent]:
            for phrase in ways.plain + ways.held_out:
                question = phrase.format(**fact.slots)
                assert answers.setdefault(question, fact.answer) == fact.answer, question
    assert answers["what is two from nine"] == "nine minus two is seven"
    assert answers["take away nine from nine"] == "nine minus nine is zero"
    assert answers["count down from six to three"] == "six five four three"
    assert answers["count from three to eight"] == "three four five six seven eight"
    assert answers["which comes after december"] == "after december comes january"
    assert answers["which day comes after sunday"] == "after sunday comes monday"
