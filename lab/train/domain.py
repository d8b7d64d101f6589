"""The closed domain of the small talker: what people ask, in which words, and the one right answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from lab.train import held_out


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
"""To what is no question of the domain: in words that the talker had already, so that its tokens stay."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer, in words. ``is_held_out``: training never asks in these words.

    ``intent`` is one of the domain's; "words" in no order; "half" of a question; or one of lab.train.outside.
    """

    intent: str
    question: str
    answer: str
    is_held_out: bool


@dataclass(frozen=True, slots=True)
class Phrasings:
    """The ways to ask for one kind of thing; if some are ``plain``, training draws half from them."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...]
    plain: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Training's and those that are held out."""
        return self.trained + self.held_out

    def draw(self, rng: random.Random) -> str:
        """One of training's."""
        return rng.choice(self.plain if self.plain and rng.random() < 0.5 else self.trained)


GREETINGS = ("hello", "hi", "hello there", "good morning")


def openings() -> Iterator[str]:
    """What may stand before a command: nothing, a greeting, a "please", a "can you", or more of these."""
    for greeting in ("", *GREETINGS):
        for asking in ("", "please", "can you", "can you please"):
            yield f"{greeting} {asking}".strip()


def phrasings(
    kept: tuple[str, ...],
    *,
    questions: Sequence[str] = (),
    commands: Sequence[str] = (),
    requests: Sequence[str] = (),
    alone: Sequence[str] = (),
    courtesies: Sequence[str] = (),
) -> Phrasings:
    """Every way to ask, with a greeting or a "please" and without, that has none ``kept`` for the test in it.

    ``questions`` and ``commands`` are whole; ``requests`` follow "tell me"; ``alone`` stand as they are;
    ``courtesies`` too, and each before each, so that they are heard in what they are made of. Half of what is
    drawn has nothing around it.
    """
    told = [f"tell me {request}" for request in requests]
    asked = [
        *alone,
        *(f"{greeting} {question}".strip() for greeting in ("", *GREETINGS) for question in questions),
    ]
    for opening in openings():
        asked += [f"{opening} {command}".strip() for command in (*commands, *told)]
        if "please" not in opening:
            asked += [f"{opening} tell me please {request}".strip() for request in requests]
    asked += [f"{one} please" for one in asked if "please" not in one]
    asked += [*courtesies, *(f"{one} {other}" for one in courtesies for other in courtesies)]
    trained = [one for one in dict.fromkeys(asked) if not any(f" {way} " in f" {one} " for way in kept)]
    plain = [one for one in (*courtesies, *alone, *questions, *commands, *told) if one in trained]
    return Phrasings(tuple(trained), kept, tuple(plain))


PHRASINGS: Mapping[str, Phrasings] = MappingProxyType(
    {
        "add": phrasings(
            held_out.PHRASINGS["add"],
            questions=(
                *("what is {a} plus {b}", "how much is {a} plus {b}", "what is {a} and {b}"),
                *("how much are {a} and {b}", "what do {a} and {b} make", "what does {a} plus {b} make"),
            ),
            commands=("add {a} and {b}", "add the numbers {a} and {b}"),
            requests=(
                *("{a} plus {b}", "how much {a} and {b} is", "what is {a} plus {b}", "what {a} plus {b} is"),
                *("how much is {a} plus {b}", "what {a} and {b} make"),
            ),
            alone=("{a} plus {b}", "{a} and {b}"),
        ),
        "subtract": phrasings(
            held_out.PHRASINGS["subtract"],
            questions=(
                *("what is {a} minus {b}", "how much is {a} minus {b}", "what is {a} take away {b}"),
                *("what is {b} from {a}", "what does {a} minus {b} make", "what does {a} take away {b} make"),
            ),
            commands=("take {b} from {a}", "take away {b} from {a}", "take {b} away from {a}"),
            requests=(
                *("{a} minus {b}", "{a} take away {b}", "how much {a} minus {b} is", "what is {a} minus {b}"),
                *("what {a} take away {b} is", "how much {a} take away {b} is", "how much is {a} minus {b}"),
            ),
            alone=("{a} minus {b}", "{a} take away {b}"),
        ),
        "count": phrasings(
            held_out.PHRASINGS["count"],
            questions=(
                *("what are the numbers from {a} to {b}", "which are the numbers from {a} to {b}"),
                *("what are the numbers {way} from {a} to {b}", "which numbers are from {a} to {b}"),
            ),
            commands=(
                *("count from {a} to {b}", "count {way} from {a} to {b}", "count from {a} {way} to {b}"),
                *("say the numbers from {a} to {b}", "say the numbers {way} from {a} to {b}"),
                *("count the numbers from {a} to {b}", "count the numbers {way} from {a} to {b}"),
                *("count {way} the numbers from {a} to {b}", "say the numbers from {a} {way} to {b}"),
            ),
            requests=(
                *("the numbers from {a} to {b}", "the numbers from {a} {way} to {b}"),
                *("the numbers {way} from {a} to {b}", "what the numbers from {a} to {b} are"),
            ),
            alone=("from {a} to {b}", "the numbers from {a} to {b}", "{way} from {a} to {b}"),
        ),
        "colour": phrasings(
            held_out.PHRASINGS["colour"],
            questions=(
                *("what colour is {a}", "which colour is {a}", "what is the colour of {a}"),
                *("which colour does {a} have", "what colour does {a} have"),
            ),
            commands=("say the colour of {a}", "say what colour {a} is", "say which colour {a} is"),
            requests=(
                *("the colour of {a}", "what colour {a} is", "which colour {a} is", "what colour is {a}"),
                "what is the colour of {a}",
            ),
            alone=("the colour of {a}", "{a} is which colour", "{a} is what colour"),
        ),
        "sound": phrasings(
            held_out.PHRASINGS["sound"],
            questions=(
                *("what does {a} say", "what sound does {a} make", "which sound does {a} make"),
                *("what is the sound of {a}", "which is the sound of {a}"),
            ),
            commands=("say the sound of {a}", "say what {a} says", "make the sound of {a}"),
            requests=(
                *("the sound of {a}", "what {a} says", "what does {a} say", "what is the sound of {a}"),
                *("what sound does {a} make", "which sound does {a} make"),
            ),
            alone=("the sound of {a}", "{a} says what"),
        ),
        "next": phrasings(
            held_out.PHRASINGS["next"],
            questions=(
                *("what comes after {a}", "what {unit} comes after {a}", "which {unit} comes after {a}"),
                *("what {unit} follows {a}", "what is the {unit} after {a}", "which {unit} is after {a}"),
                *("which comes after {a}", "what follows {a}", "which follows {a}"),
                *("what {unit} is after {a}", "which is the {unit} after {a}", "what is after {a}"),
            ),
            commands=("say the {unit} after {a}", "say what comes after {a}", "say what follows {a}"),
            requests=(
                *("the {unit} after {a}", "what comes after {a}", "what {unit} follows {a}"),
                *("which {unit} comes after {a}", "what follows {a}", "which follows {a}"),
                *("which {unit} is after {a}", "what the {unit} after {a} is"),
            ),
            alone=("the {unit} after {a}",),
        ),
        "name": phrasings(
            held_out.PHRASINGS["name"],
            questions=(
                *("what is your name", "who are you", "what are you called", "do you have a name"),
                *("which is your name", "which name do you have", "what name do you have"),
            ),
            commands=("say your name", "say who you are", "say what your name is"),
            requests=(
                *("your name", "who you are", "what you are called", "what your name is", "who are you"),
                *("what is your name", "which name you have", "what are you called"),
            ),
            alone=("your name", "who you are"),
        ),
        "greeting": phrasings(
            held_out.PHRASINGS["greeting"],
            courtesies=(
                "hello",
                "hi",
                "hello there",
                "hi there",
                "good morning",
                "good evening",
                "good afternoon",
            ),
        ),
        "thanks": phrasings(
            held_out.PHRASINGS["thanks"],
            courtesies=(
                *("thank you", "thanks", "many thanks", "many many thanks", "thank you very much"),
                *("thanks a lot", "thank you so much", "thanks so much", "thank you so very much"),
            ),
        ),
        "goodbye": phrasings(
            held_out.PHRASINGS["goodbye"],
            courtesies=(
                "goodbye",
                "bye",
                "bye bye",
                "good night",
                "see you",
                "see you later",
                "see you soon",
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
    """What a question of one intent is about: its slots, and the answer they have."""

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


def _shape(words: Sequence[str]) -> str:
    """Words of a phrasing, whichever of its two slots stands in them."""
    return " ".join(words).replace("{b}", "{a}")


class Domain:
    """Draws questions: for training, or in words that training never uses; and what is no question."""

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
    def _questions(self) -> frozenset[str]:
        return frozenset(
            phrase.format(**fact.slots)
            for intent, ways in PHRASINGS.items()
            for fact in self.facts[intent]
            for phrase in ways.all
        )

    def answers(self) -> list[str]:
        """Every sentence the talker may say, the refusal included."""
        return sorted({REFUSAL, *(fact.answer for known in self.facts.values() for fact in known)})

    def words(self) -> list[str]:
        """Every word of questions and answers."""
        return sorted({*self._asked_words, *" ".join(self.answers()).split()})

    def is_question(self, text: str) -> bool:
        """Whether a text is a question of the domain, held out or not."""
        return text in self._questions

    def draw(self, rng: random.Random, intent: str | None = None) -> Turn:
        """A question as training asks it."""
        intent = intent or rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        fact = rng.choice(self.facts[intent])
        return self._turn(intent, PHRASINGS[intent].draw(rng), fact, is_held_out=False)

    def draw_words(self, rng: random.Random) -> Turn:
        """Words of the domain in no order: who learns to write these down cannot guess, and has to listen.

        Nothing is answered: a talker that was to refuse them refused ways to ask that it had not heard.
        """
        while True:
            count = rng.randint(2, 8)
            words = [rng.choice(NUMBERS if rng.random() < 0.35 else self._asked_words) for _ in range(count)]
            text = " ".join(words)
            if not self.is_question(text):
                return Turn("words", text, "", False)

    def draw_half(self, rng: random.Random, *, is_held_out: bool = False) -> Turn:
        """A question that lost its beginning or its end, and with it what it is about.

        No half that is held out is half of a phrasing of training too, as "please tell me" is.
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
        """A question in words in which training never asks."""
        fact = rng.choice(self.facts[intent])
        return self._turn(intent, rng.choice(PHRASINGS[intent].held_out), fact, is_held_out=True)

    def _turn(self, intent: str, phrase: str, fact: Fact, *, is_held_out: bool) -> Turn:
        return Turn(intent, phrase.format(**fact.slots), fact.answer, is_held_out)
