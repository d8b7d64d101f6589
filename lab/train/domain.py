"""The closed domain of the small talker: what people ask, in which words, and the one right answer."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
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


GREETINGS = ("hello", "hi", "hello there", "good morning")


def phrasings(
    held_out: tuple[str, ...],
    *,
    questions: Sequence[str] = (),
    commands: Sequence[str] = (),
    requests: Sequence[str] = (),
    alone: Sequence[str] = (),
) -> Phrasings:
    """Every way to ask, with and without a greeting and a "please", but for those that are held out.

    ``questions`` and ``commands`` are whole; ``requests`` follow "tell me"; ``alone`` stand as they are.
    """
    asked = [*alone, *questions]
    asked += [f"{greeting} {question}" for greeting in GREETINGS for question in questions]
    for command in [*commands, *(f"tell me {request}" for request in requests)]:
        asked += [f"{opening} {command}".strip() for opening in ("", "please", "can you please", *GREETINGS)]
        asked += [f"{command} please", f"hello can you please {command}", f"hi please {command}"]
    asked += [f"can you {command}" for command in commands]
    return Phrasings(tuple(one for one in dict.fromkeys(asked) if one not in held_out), held_out)


PHRASINGS: Mapping[str, Phrasings] = MappingProxyType(
    {
        "add": phrasings(
            ("can you tell me {a} plus {b}", "how much is {a} and {b}"),
            questions=("what is {a} plus {b}", "how much is {a} plus {b}", "what is {a} and {b}"),
            commands=("add {a} and {b}",),
            requests=("{a} plus {b}", "how much {a} and {b} is", "what is {a} plus {b}"),
            alone=("{a} plus {b}", "{a} and {b}", "please add {a} and {b}"),
        ),
        "subtract": phrasings(
            ("can you tell me {a} minus {b}", "how much is {a} take away {b}"),
            questions=("what is {a} minus {b}", "how much is {a} minus {b}", "what is {a} take away {b}"),
            commands=("take {b} from {a}", "take away {b} from {a}"),
            requests=("{a} minus {b}", "{a} take away {b}", "how much {a} minus {b} is"),
            alone=("{a} minus {b}", "{a} take away {b}"),
        ),
        "count": phrasings(
            ("please count {way} from {a} to {b}", "can you tell me the numbers from {a} to {b}"),
            questions=("what are the numbers from {a} to {b}",),
            commands=("count from {a} to {b}", "count {way} from {a} to {b}"),
            requests=("the numbers from {a} to {b}",),
            alone=("from {a} to {b}", "the numbers from {a} to {b}"),
        ),
        "colour": phrasings(
            ("can you tell me the colour of {a}", "which is the colour of {a}"),
            questions=("what colour is {a}", "which colour is {a}", "what is the colour of {a}"),
            requests=("the colour of {a}", "what colour {a} is", "which colour {a} is"),
            alone=("the colour of {a}", "which colour does {a} have"),
        ),
        "sound": phrasings(
            ("can you tell me the sound of {a}", "please tell me what {a} says"),
            questions=(
                "what does {a} say",
                "what sound does {a} make",
                "which sound does {a} make",
                "what is the sound of {a}",
            ),
            requests=("the sound of {a}", "what {a} says", "what sound {a} does make"),
            alone=("the sound of {a}", "which is the sound of {a}"),
        ),
        "next": phrasings(
            ("can you tell me the {unit} after {a}", "which {unit} follows {a}"),
            questions=(
                "what comes after {a}",
                "what {unit} comes after {a}",
                "which {unit} comes after {a}",
                "what {unit} follows {a}",
                "what is the {unit} after {a}",
            ),
            requests=("the {unit} after {a}", "what comes after {a}", "what {unit} follows {a}"),
            alone=("the {unit} after {a}", "which is the {unit} after {a}", "what follows {a}"),
        ),
        "name": phrasings(
            ("can you tell me your name", "tell me who you are"),
            questions=("what is your name", "who are you", "what are you called", "do you have a name"),
            requests=("your name", "who you are", "what you are called", "what your name is"),
            alone=("your name please", "which is your name", "hello your name please"),
        ),
        "greeting": phrasings(
            ("hello good evening", "hi good afternoon"),
            alone=(
                *("hello", "hi", "hello there", "hi there", "good morning", "good evening", "good afternoon"),
                *("hello good morning", "hi good morning", "hello there good morning", "hi good evening"),
                *("hello good afternoon", "hi there good afternoon", "hello there good evening"),
                *("hello hello", "hi hello", "hello hello good evening", "good afternoon hello there"),
            ),
        ),
        "thanks": phrasings(
            ("thanks very much", "thank you a lot"),
            alone=(
                *("thank you", "thanks", "thank you very much", "thanks a lot", "many thanks"),
                *("thank you so much", "thanks so much", "thank you so very much", "thank you many thanks"),
                *("thank you thank you", "thanks many thanks", "many many thanks", "thanks thank you"),
            ),
        ),
        "goodbye": phrasings(
            ("bye see you later", "goodbye good night"),
            alone=(
                *("goodbye", "bye", "bye bye", "see you later", "good night", "goodbye see you later"),
                *("see you", "see you soon", "bye good night", "good night goodbye", "bye goodbye"),
                *("bye bye see you later", "bye see you soon", "good night see you later", "see you bye"),
            ),
        ),
    }
)
WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "add": 18,
        "subtract": 19,
        "count": 17,
        "colour": 10,
        "sound": 10,
        "next": 10,
        "name": 5,
        "greeting": 4,
        "thanks": 3.5,
        "goodbye": 3.5,
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

        self._asked_words = sorted({word for turn in self._all_turns() for word in turn.split()})

    def _all_turns(self) -> Iterator[str]:
        for intent, ways in PHRASINGS.items():
            for fact in self.facts[intent]:
                yield from (phrase.format(**fact.slots) for phrase in ways.trained + ways.held_out)

    def answers(self) -> list[str]:
        """Every sentence the talker may say."""
        return sorted({fact.answer for known in self.facts.values() for fact in known})

    def words(self) -> list[str]:
        """Every word of questions and answers."""
        return sorted({*self._asked_words, *" ".join(self.answers()).split()})

    def draw(self, rng: random.Random, intent: str | None = None) -> Turn:
        """A question as training asks it."""
        intent = intent or rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        fact = rng.choice(self.trained[intent])
        return self._turn(intent, rng.choice(PHRASINGS[intent].trained), fact, is_held_out=False)

    def draw_words(self, rng: random.Random) -> Turn:
        """Words of the domain in no order: who learns to write these down cannot guess, and has to listen."""
        known = self._asked_words
        count = rng.randint(2, 8)
        words = [rng.choice(NUMBERS if rng.random() < 0.35 else known) for _ in range(count)]
        return Turn("words", " ".join(words), "", False)

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
