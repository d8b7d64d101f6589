"""The phrasings of questions to the small talker: the core of each question, and optional words around it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from lab.train import held_out


@dataclass(frozen=True, slots=True)
class Phrasings:
    """The phrasings of one kind of question; if some are ``plain``, training draws half from them."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...]
    plain: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """The training phrasings and the held-out ones."""
        return self.trained + self.held_out

    def draw(self, rng: random.Random) -> str:
        """Draw one of the training phrasings."""
        return rng.choice(self.plain if self.plain and rng.random() < 0.5 else self.trained)


GREETINGS = ("hello", "hi", "hello there", "good morning")


def openings() -> Iterator[str]:
    """Yield the optional words before a command: none, a greeting, a "please", a "can you", or several of
    these."""
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
    """Return every phrasing, with and without a greeting or a "please"; training excludes those with one of
    ``kept``.

    ``questions`` and ``commands`` are complete; ``requests`` follow "tell me"; ``alone`` are used unchanged;
    ``courtesies`` too, and each before each. Half of the draws have no words around them.
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
