"""The closed domain of the small talker: its questions, and the one right answer to each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from lab.train.phrasings import PHRASINGS


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NUMBERS = _words(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty
    """
)
DAYS = _words("monday tuesday wednesday thursday friday saturday sunday")
MONTHS = _words("january february march april may june july august september october november december")
COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "the sky": "blue",
        "the sea": "blue",
        "grass": "green",
        "a frog": "green",
        "a leaf": "green",
        "snow": "white",
        "milk": "white",
        "coal": "black",
        "the night": "black",
        "blood": "red",
        "a tomato": "red",
        "a cherry": "red",
        "the sun": "yellow",
        "a lemon": "yellow",
        "a banana": "yellow",
        "an elephant": "gray",
        "chocolate": "brown",
        "a carrot": "orange",
        "a pig": "pink",
    }
)
SOUNDS: Mapping[str, str] = MappingProxyType(
    {
        "cow": "moo",
        "dog": "woof",
        "cat": "meow",
        "duck": "quack",
        "horse": "neigh",
        "lion": "roar",
        "bee": "buzz",
        "owl": "hoot",
        "mouse": "squeak",
        "snake": "hiss",
        "bird": "tweet",
        "wolf": "howl",
    }
)
NAME = "robin"
LONGEST_COUNT = 6
REFUSAL = "what do you say"
"""Reply to speech outside the domain: with words that the talker already had, so that its tokens
are unchanged."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The words of a question and of its answer. ``is_held_out``: training never has this phrasing.

    ``intent`` is one of the domain's; "words" in random order; "half" of a question; or one of
    lab.train.outside.
    """

    intent: str
    question: str
    answer: str
    is_held_out: bool


WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "add": 18,
        "subtract": 19,
        "count": 17,
        "colour": 10,
        "sound": 10,
        "next": 10,
        "name": 9,
        "greeting": 9,
        "thanks": 9,
        "goodbye": 9,
    }
)
FIXED_ANSWERS: Mapping[str, str] = MappingProxyType(
    {
        "name": f"my name is {NAME}",
        "greeting": "hello nice to meet you",
        "thanks": "you are welcome",
        "goodbye": "goodbye see you soon",
    }
)


@dataclass(frozen=True, slots=True)
class Fact:
    """The subject of a question of one intent: its slots, and their answer."""

    slots: Mapping[str, str]
    answer: str


def _with_article(animal: str) -> str:
    return ("an " if animal[0] in "aeiou" else "a ") + animal


def _sums() -> Iterator[Fact]:
    for a in range(21):
        for b in range(21 - a):
            words = NUMBERS[a], NUMBERS[b]
            yield Fact({"a": words[0], "b": words[1]}, f"{words[0]} plus {words[1]} is {NUMBERS[a + b]}")


def _differences() -> Iterator[Fact]:
    for a in range(21):
        for b in range(a + 1):
            words = NUMBERS[a], NUMBERS[b]
            yield Fact({"a": words[0], "b": words[1]}, f"{words[0]} minus {words[1]} is {NUMBERS[a - b]}")


def _ranges() -> Iterator[Fact]:
    for a in range(21):
        for b in range(21):
            if 2 <= abs(a - b) < LONGEST_COUNT:
                way, step = ("up", 1) if b > a else ("down", -1)
                answer = " ".join(NUMBERS[n] for n in range(a, b + step, step))
                yield Fact({"a": NUMBERS[a], "b": NUMBERS[b], "way": way}, answer)


def _successors() -> Iterator[Fact]:
    for unit, names in (("day", DAYS), ("month", MONTHS)):
        for name, following in zip(names, names[1:] + names[:1], strict=True):
            yield Fact({"a": name, "unit": unit}, f"after {name} comes {following}")


def facts(intent: str) -> list[Fact]:
    """Return all facts of an intent, held out or not."""
    makers: Mapping[str, Callable[[], Iterator[Fact]]] = {
        "add": _sums,
        "subtract": _differences,
        "count": _ranges,
        "next": _successors,
    }
    if intent in makers:
        return list(makers[intent]())
    if intent == "colour":
        return [Fact({"a": thing}, f"{thing} is {colour}") for thing, colour in COLOURS.items()]
    if intent == "sound":
        return [
            Fact({"a": _with_article(animal)}, f"{_with_article(animal)} says {sound}")
            for animal, sound in SOUNDS.items()
        ]
    return [Fact({}, FIXED_ANSWERS[intent])]


def _shape(words: Sequence[str]) -> str:
    """Words of a phrasing, with either of its two slots."""
    return " ".join(words).replace("{b}", "{a}")


class Domain:
    """A source of random questions, for training or in held-out phrasings, and of speech that is no
    question."""

    def __init__(self) -> None:
        self.facts = {intent: facts(intent) for intent in PHRASINGS}
        ways = [phrase for one in PHRASINGS.values() for phrase in one.all]
        slots = {word for known in self.facts.values() for fact in known for word in fact.slots.values()}
        asked = f"{' '.join(ways)} {' '.join(slots)}".split()
        self._asked_words = sorted({word for word in asked if "{" not in word})
        trained = (phrase.split() for ways in PHRASINGS.values() for phrase in ways.trained)
        cut = ((words[:at], words[at:]) for words in trained for at in range(1, len(words)))
        self._trained_halves = frozenset(_shape(half) for halves in cut for half in halves)

    @cached_property
    def _questions(self) -> Mapping[str, Turn]:
        turns = (
            self._turn(intent, phrase, fact, is_held_out=phrase in ways.held_out)
            for intent, ways in PHRASINGS.items()
            for fact in self.facts[intent]
            for phrase in ways.all
        )
        return {turn.question: turn for turn in turns}

    def answers(self) -> list[str]:
        """Return every sentence that the talker may say, including the refusal."""
        return sorted({REFUSAL, *(fact.answer for known in self.facts.values() for fact in known)})

    def words(self) -> list[str]:
        """Return every word of the questions and answers."""
        return sorted({*self._asked_words, *" ".join(self.answers()).split()})

    def is_question(self, text: str) -> bool:
        """Return whether a text is a question of the domain, held out or not."""
        return text in self._questions

    def turn(self, question: str) -> Turn:
        """Return the turn of a question of the domain.

        Raises:
            KeyError: it is none.
        """
        return self._questions[question]

    def draw(self, rng: random.Random, intent: str | None = None) -> Turn:
        """Draw a question in one of the training phrasings."""
        intent = intent or rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        fact = rng.choice(self.facts[intent])
        return self._turn(intent, PHRASINGS[intent].draw(rng), fact, is_held_out=False)

    def draw_words(self, rng: random.Random) -> Turn:
        """Draw words of the domain in random order: a model that learns to transcribe them cannot guess, and
        has to use the audio.

        They have no answer: a talker that was to refuse them also refused unknown phrasings.
        """
        while True:
            count = rng.randint(2, 8)
            words = [rng.choice(NUMBERS if rng.random() < 0.35 else self._asked_words) for _ in range(count)]
            text = " ".join(words)
            if not self.is_question(text):
                return Turn("words", text, "", False)

    def draw_half(self, rng: random.Random, *, is_held_out: bool = False) -> Turn:
        """Draw a question without its beginning or its end, and therefore without its subject.

        No held-out half is also half of a phrasing of training, as "please tell me" is.
        """
        while True:
            intent = rng.choice([name for name in PHRASINGS if name not in FIXED_ANSWERS])
            ways = PHRASINGS[intent]
            words = rng.choice(ways.held_out if is_held_out else ways.trained).split()
            cut = rng.randint(1, len(words) - 1)
            kept, lost = (words[:cut], words[cut:]) if rng.random() < 0.7 else (words[cut:], words[:cut])
            if is_held_out and _shape(kept) in self._trained_halves:
                continue
            text = " ".join(kept).format(**rng.choice(self.facts[intent]).slots)
            if {"{a}", "{b}"} & set(lost) and not self.is_question(text):
                return Turn("half", text, REFUSAL, is_held_out)

    def draw_held_out(self, rng: random.Random, intent: str) -> Turn:
        """Draw a question in a phrasing that training never uses."""
        fact = rng.choice(self.facts[intent])
        return self._turn(intent, rng.choice(PHRASINGS[intent].held_out), fact, is_held_out=True)

    def _turn(self, intent: str, phrase: str, fact: Fact, *, is_held_out: bool) -> Turn:
        return Turn(intent, phrase.format(**fact.slots), fact.answer, is_held_out)
