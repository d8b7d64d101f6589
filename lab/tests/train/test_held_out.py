"""Training data has none of the held-out material, in thousands of draws; the tests have all of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from lab.train import held_out
from lab.train.bendings import BENDINGS
from lab.train.domain import NUMBERS, REFUSAL, Domain, Turn
from lab.train.kokoro import ENGLISH, MIXED, PROGRAM, SPEAKERS, voices
from lab.train.music import INSTRUMENTS, music
from lab.train.natural import Planner
from lab.train.noises import NOISES
from lab.train.outside import ABROAD, FOREIGN, INTENTS, Outside
from lab.train.outside_texts import LARGE
from lab.train.phrasings import PHRASINGS
from lab.train.questions import Asked, plan
from lab.train.surroundings import LINES, ROOMS, Surroundings
from lab.train.synthetic_voices import FESTIVAL, FLITE, OTHER_LANGUAGES, VARIANTS, Voice, draw_voice
from lab.train.yardsticks import natural_outside, natural_questions

DRAWS = 6000


def name_of(voice: Voice) -> str:
    """A variant of espeak-ng, or another's voice."""
    return voice.name.split("+")[-1]


def planned(*, is_held_out: bool, further: tuple[str, ...] = ()) -> Iterator[tuple[Turn, Voice]]:
    rng, domain = random.Random(9), Domain()
    asked = Asked(is_held_out, further)
    for _ in range(DRAWS):
        turn, voice, _ = plan(rng, domain, asked)
        yield turn, voice


@pytest.mark.parametrize("further", [(), ("rhvoice", "pico")])
def test_training_asks_in_no_voice_that_is_held_out(further: tuple[str, ...]) -> None:
    voices = [voice for _, voice in planned(is_held_out=False, further=further)]
    kept = {(program, name) for program, names in held_out.VOICES.items() for name in names}
    assert not {(voice.program, name_of(voice)) for voice in voices} & kept
    assert not {voice.program for voice in voices} & set(held_out.ENGINES)
    assert not {voice.bending for voice in voices} - {""}
    assert not {voice.name.split("+")[0] for voice in voices} & set(held_out.LANGUAGES)


def test_the_codec_hears_no_voice_that_is_held_out() -> None:
    rng = random.Random(2)
    voices = [draw_voice(rng, foreign=index % 2 == 0) for index in range(2000)]
    assert not {name_of(voice) for voice in voices} & {
        name for names in held_out.VOICES.values() for name in names
    }
    assert not {*VARIANTS, *FLITE, *FESTIVAL} & {name for names in held_out.VOICES.values() for name in names}
    assert not [name for name in FLITE if name.startswith("kal")], "the speaker of two held-out voices"
    assert not set(OTHER_LANGUAGES) & set(held_out.LANGUAGES)


def test_the_tests_are_asked_in_held_out_voices_alone_and_in_all_of_them() -> None:
    voices = [voice for _, voice in planned(is_held_out=True)]
    heard = {(voice.program, name_of(voice)) for voice in voices}
    assert heard == {
        (program, name) for program, names in held_out.VOICES.items() if program != PROGRAM for name in names
    }
    assert {voice.bending for voice in voices} == {"", *held_out.BENDINGS}
    assert all(voice.throat is None for voice in voices)


def naturally(*, is_held_out: bool) -> list[tuple[Turn, Voice]]:
    rng, planner = random.Random(10), Planner(held_out=is_held_out)
    return [planner.draw(rng) for _ in range(DRAWS // 3)]


def test_natural_speech_of_training_is_mixed_of_no_voice_that_is_held_out() -> None:
    rng, planner = random.Random(11), Planner()
    drawn = [voice for _, voice in naturally(is_held_out=False)]
    drawn += [planner.draw_outside(rng)[1] for _ in range(1000)]
    names = [voice.name.split(MIXED) for voice in drawn if voice.program == PROGRAM]
    assert {len(parts) for parts in names} == {1, 2}
    heard = {name for parts in names for name in parts}
    assert heard == {name for those in SPEAKERS.values() for name in those} - {*held_out.VOICES[PROGRAM]}
    assert {voice.program for voice in drawn} == {PROGRAM, "hibari"}


def test_the_natural_tests_are_spoken_by_every_held_out_voice_and_not_bent() -> None:
    voices = [voice for _, voice in naturally(is_held_out=True)]
    assert {voice.name for voice in voices} == {*held_out.VOICES[PROGRAM]}
    assert all(voice.throat is None for voice in voices)


def test_recordings_of_people_are_in_no_voice_of_training() -> None:
    drawn = [*planned(is_held_out=False), *naturally(is_held_out=False)]
    assert held_out.PEOPLE not in {voice.program for _, voice in drawn}


def test_natural_turns_share_no_sentence_with_the_tests() -> None:
    said = {
        kept: {turn.question for turn, _ in naturally(is_held_out=kept) if turn.intent in (*INTENTS, "half")}
        for kept in (False, True)
    }
    assert not said[False] & said[True]
    yardstick = {turn.question for turn, _ in (*natural_questions(), *natural_outside())}
    assert not yardstick & {turn.question for turn, _ in naturally(is_held_out=False)}


def test_the_yardstick_asks_every_kind_in_every_natural_english_voice() -> None:
    asked = natural_questions()
    assert {turn.intent for turn, _ in asked} == set(PHRASINGS)
    counts = Counter(voice.name for _, voice in asked)
    english = [name for language in ENGLISH for name in voices(language, held_out=True)]
    assert counts == dict.fromkeys(english, 16)


def test_training_asks_no_phrasing_that_is_held_out_and_every_fact() -> None:
    domain = Domain()
    kept = {
        phrase.format(**fact.slots)
        for intent, phrases in held_out.PHRASINGS.items()
        for phrase in phrases
        for fact in domain.facts[intent]
    }
    trained = [turn for turn, _ in (*planned(is_held_out=False), *naturally(is_held_out=False))]
    tested = [turn for turn, _ in (*planned(is_held_out=True), *naturally(is_held_out=True))]
    assert not {turn.question for turn in trained} & kept
    assert {turn.question for turn in tested if turn.intent in PHRASINGS} <= kept
    rng = random.Random(1)
    answers = {domain.draw(rng).answer for _ in range(40_000)}
    assert answers == set(domain.answers()) - {REFUSAL}


def test_what_is_outside_the_domain_is_no_question_and_not_shared_with_the_tests() -> None:
    domain = Domain()
    said = {
        kept: {turn.question for turn, _ in planned(is_held_out=kept) if turn.intent in (*INTENTS, "half")}
        for kept in (False, True)
    }
    assert not any(domain.is_question(text) for texts in said.values() for text in texts)
    foreign_numbers = {text for texts in said.values() for text in texts if text.replace(" ", "").isdigit()}
    assert not (said[False] & said[True]) - foreign_numbers
    turns = [turn for turn, _ in planned(is_held_out=False)]
    share = sum(turn.answer == REFUSAL for turn in turns) / len(turns)
    assert share == pytest.approx(0.22 + 0.08, abs=0.03)
    assert {turn.intent for turn in turns} == {*PHRASINGS, *INTENTS, "half", "words"}


def test_numbers_kept_for_the_tests_are_in_no_question_of_training() -> None:
    rng = random.Random(3)
    texts = {Outside()._like_question(rng) for _ in range(4_000)}
    trained = {number for number in LARGE if not held_out.is_sentence_held_out(number)}
    numbers = [
        number for number in LARGE if not any(f" {number} " in f" {other} " for other in trained)
    ]  # "thirty" is in "thirty two" anyway
    assert numbers
    assert not [text for text in texts for number in numbers if f" {number} " in f" {text} "]


def test_half_a_question_lacks_what_it_is_about() -> None:
    domain, rng = Domain(), random.Random(4)
    for _ in range(500):
        turn = domain.draw_half(rng)
        assert (turn.intent, turn.answer) == ("half", REFUSAL)
        assert "{" not in turn.question
        assert sum(word in NUMBERS for word in turn.question.split()) < 2


def test_foreign_sentences_are_of_every_language_but_the_tests() -> None:
    rng = random.Random(3)
    for kept in (False, True):
        drawn = [Outside(kept).draw(rng) for _ in range(1500)]
        languages = {voice.name.split("+")[0] for turn, voice in drawn if turn.intent == ABROAD}
        assert languages == {one for one in FOREIGN if (one in held_out.LANGUAGES) == kept}


def test_surroundings_of_training_are_none_of_the_tests() -> None:
    rng = np.random.default_rng(0)
    kept = {
        "noise": (held_out.NOISES, NOISES),
        "room": (held_out.ROOMS, ROOMS),
        "line": (held_out.LINES, LINES),
    }
    for is_held_out in (False, True):
        drawn = [Surroundings.drawn(rng, held_out=is_held_out) for _ in range(1000)]
        for name, (names, known) in kept.items():
            assert set(names) < set(known)
            wanted = set(names) if is_held_out else set(known) - set(names)
            assert {getattr(one, name) for one in drawn} == {"", *wanted}


@pytest.mark.parametrize("kind", [*NOISES, *ROOMS, *LINES])
def test_every_surrounding_keeps_the_length_and_stays_finite(kind: str) -> None:
    rng = np.random.default_rng(1)
    speech = (rng.standard_normal(12_001) * 0.1).astype(np.float32)
    sound = NOISES[kind](rng, speech.size) if kind in NOISES else {**ROOMS, **LINES}[kind](rng, speech)
    assert sound.shape == speech.shape
    assert sound.dtype == np.float32
    assert np.isfinite(sound).all()
    assert sound.std() > 0.02
    assert not np.array_equal(sound, speech)


def test_a_telephone_keeps_no_treble() -> None:
    rng = np.random.default_rng(2)
    spectrum = np.abs(
        np.fft.rfft(LINES["telephone"](rng, rng.standard_normal(24_000).astype(np.float32) * 0.1))
    )
    assert spectrum[4500:].mean() < 0.05 * spectrum[500:3000].mean()


def test_a_bent_voice_takes_as_long_and_sounds_otherwise() -> None:
    assert set(BENDINGS) == set(held_out.BENDINGS)
    speech = np.sin(np.arange(24_000) * 2 * np.pi * 150 / 24_000).astype(np.float32)
    for bend in BENDINGS.values():
        bent = bend(speech, 24_000)
        assert bent.shape == speech.shape
        assert bent.dtype == np.float32
        assert np.isfinite(bent).all()
        assert np.abs(bent - speech).max() > 0.01


def test_music_of_training_has_none_of_the_tests_instruments() -> None:
    assert set(held_out.INSTRUMENTS) < set(INSTRUMENTS)
    sound = music(np.random.default_rng(0), 24_000)
    assert np.abs(sound).max() == pytest.approx(1.0, abs=1e-3)
    assert sound.dtype == np.float32
