"""The closed domain of the small talker: what people ask, in which words, and the one right answer."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType


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
HELD_OUT_SHARE = 10
"""One fact in so many (operand pair, range to count) is never trained on."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer, in words. ``is_held_out``: training never asks just this."""

    intent: str
    question: str
    answer: str
    is_held_out: bool


@dataclass(frozen=True, slots=True)
class Phrasings:
    """The ways to ask for one kind of thing; the last tuple is kept for the test."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...]


PHRASINGS: Mapping[str, Phrasings] = MappingProxyType(
    {
        "add": Phrasings(
            (
                "what is {a} plus {b}",
                "how much is {a} plus {b}",
                "what is {a} and {b}",
                "add {a} and {b}",
                "please add {a} and {b}",
                "can you add {a} and {b}",
                "tell me {a} plus {b}",
                "{a} plus {b}",
            ),
            ("can you tell me {a} plus {b}", "how much is {a} and {b}"),
        ),
        "subtract": Phrasings(
            (
                "what is {a} minus {b}",
                "how much is {a} minus {b}",
                "take {b} from {a}",
                "please take {b} from {a}",
                "what is {a} take away {b}",
                "tell me {a} minus {b}",
                "{a} minus {b}",
            ),
            ("can you tell me {a} minus {b}", "how much is {a} take away {b}"),
        ),
        "count": Phrasings(
            (
                "count from {a} to {b}",
                "please count from {a} to {b}",
                "can you count from {a} to {b}",
                "count {way} from {a} to {b}",
                "tell me the numbers from {a} to {b}",
            ),
            ("please count {way} from {a} to {b}", "can you tell me the numbers from {a} to {b}"),
        ),
        "colour": Phrasings(
            (
                "what colour is {a}",
                "which colour is {a}",
                "tell me the colour of {a}",
                "what is the colour of {a}",
                "please tell me the colour of {a}",
            ),
            ("can you tell me the colour of {a}", "which is the colour of {a}"),
        ),
        "sound": Phrasings(
            (
                "what does {a} say",
                "what sound does {a} make",
                "which sound does {a} make",
                "tell me the sound of {a}",
                "what is the sound of {a}",
            ),
            ("can you tell me the sound of {a}", "please tell me what {a} says"),
        ),
        "next": Phrasings(
            (
                "what comes after {a}",
                "what {unit} comes after {a}",
                "which {unit} comes after {a}",
                "what {unit} follows {a}",
                "what is the {unit} after {a}",
                "tell me the {unit} after {a}",
            ),
            ("can you tell me the {unit} after {a}", "which {unit} follows {a}"),
        ),
        "name": Phrasings(
            (
                "what is your name",
                "tell me your name",
                "who are you",
                "please tell me your name",
                "what are you called",
                "do you have a name",
            ),
            ("can you tell me your name", "tell me who you are"),
        ),
        "greeting": Phrasings(
            (
                "hello",
                "hi",
                "hello there",
                "good morning",
                "good evening",
                "hi there",
                "good afternoon",
                "hello good morning",
            ),
            ("hello good evening", "hi good afternoon"),
        ),
        "thanks": Phrasings(
            (
                "thank you",
                "thanks",
                "thank you very much",
                "thanks a lot",
                "many thanks",
                "thank you so much",
            ),
            ("thanks very much", "thank you a lot"),
        ),
        "goodbye": Phrasings(
            ("goodbye", "bye", "bye bye", "see you later", "good night", "goodbye see you later"),
            ("bye see you later", "goodbye good night"),
        ),
    }
)
WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "add": 24,
        "subtract": 24,
        "count": 16,
        "colour": 9,
        "sound": 7,
        "next": 9,
        "name": 3,
        "greeting": 3,
        "thanks": 2.5,
        "goodbye": 2.5,
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
    """What a question of one intent is about: its slots, and the answer they have."""

    slots: Mapping[str, str]
    answer: str


def is_fact_held_out(intent: str, fact: Fact) -> bool:
    """Whether a fact is kept for the test: one in ten sums, differences and ranges, by a hash."""
    if intent not in ("add", "subtract", "count"):
        return False
    digest = hashlib.sha256(f"{intent} {fact.answer}".encode()).digest()
    return digest[0] % HELD_OUT_SHARE == 0


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
    """Everything an intent can be asked about, held out or not."""
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


class Domain:
    """Draws questions: for training, or of the kind that training never asks."""

    def __init__(self) -> None:
        self.facts = {intent: facts(intent) for intent in PHRASINGS}
        self.trained = {
            intent: [fact for fact in known if not is_fact_held_out(intent, fact)]
            for intent, known in self.facts.items()
        }
        self.held_out = {
            intent: [fact for fact in known if is_fact_held_out(intent, fact)]
            for intent, known in self.facts.items()
        }

    def answers(self) -> list[str]:
        """Every sentence the talker may say."""
        return sorted({fact.answer for known in self.facts.values() for fact in known})

    def words(self) -> list[str]:
        """Every word of questions and answers."""
        spoken = set(" ".join(self.answers()).split())
        for intent, phrasings in PHRASINGS.items():
            for fact in self.facts[intent]:
                for phrase in phrasings.trained + phrasings.held_out:
                    spoken |= set(phrase.format(**fact.slots).split())
        return sorted(spoken)

    def draw(self, rng: random.Random, intent: str | None = None) -> Turn:
        """A question as training asks it."""
        intent = intent or rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        fact = rng.choice(self.trained[intent])
        return self._turn(intent, rng.choice(PHRASINGS[intent].trained), fact, is_held_out=False)

    def draw_held_out(self, rng: random.Random, intent: str) -> Turn:
        """A question training never asks: a held-out fact where there are some, else a held-out phrasing.

        Half of the held-out facts are asked in a held-out phrasing too.
        """
        if self.held_out[intent]:
            phrasings = PHRASINGS[intent].held_out if rng.random() < 0.5 else PHRASINGS[intent].trained
            return self._turn(
                intent, rng.choice(phrasings), rng.choice(self.held_out[intent]), is_held_out=True
            )
        fact = rng.choice(self.facts[intent])
        return self._turn(intent, rng.choice(PHRASINGS[intent].held_out), fact, is_held_out=True)

    def _turn(self, intent: str, phrase: str, fact: Fact, *, is_held_out: bool) -> Turn:
        return Turn(intent, phrase.format(**fact.slots), fact.answer, is_held_out)
