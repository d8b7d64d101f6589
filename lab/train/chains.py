"""Training material that must be computed and cannot be memorised: sums of several numbers, counts with a
wrong start."""

from __future__ import annotations

import numpy as np

from lab.train.domain import LONGEST_COUNT, NUMBERS, Domain

LONGEST = 4
MISBEGUN_SHARE = 0.2


class Chains:
    """A source of random sentences such as "two plus nine minus four is seven", without results below zero or
    above twenty."""

    def __init__(self, domain: Domain) -> None:
        self._value = {word: number for number, word in enumerate(NUMBERS)}
        self._known = {
            (self._value[fact.slots["a"]], sign, self._value[fact.slots["b"]])
            for sign, intent in ((1, "add"), (-1, "subtract"))
            for fact in domain.facts[intent]
        }

    def draw(self, rng: np.random.Generator) -> str:
        """Return the words of a chain of two to four numbers and its result."""
        steps = int(rng.integers(1, LONGEST))
        total = int(rng.integers(len(NUMBERS)))
        words = [NUMBERS[total]]
        while steps:
            sign = 1 if rng.random() < 0.5 else -1
            number = int(rng.integers(len(NUMBERS)))
            if (total, sign, number) not in self._known:
                continue
            words += ["plus" if sign > 0 else "minus", NUMBERS[number]]
            total += sign * number
            steps -= 1
        return " ".join([*words, "is", NUMBERS[total]])

    def misbegun(self, answer: str, rng: np.random.Generator) -> str:
        """Return an answer; one count in five gets another first number and keeps its end.

        A count from twelve to eight that continues at ten still has to stop at eight: the stop then depends
        only on the question.
        """
        numbers = [self._value.get(word, -1) for word in answer.split()]
        if -1 in numbers or rng.random() > MISBEGUN_SHARE:
            return answer
        step, end = (1 if numbers[1] > numbers[0] else -1), numbers[-1]
        starts = [end - step * count for count in range(2, LONGEST_COUNT) if count != len(numbers) - 1]
        start = int(rng.choice([one for one in starts if 0 <= one < len(NUMBERS)] or numbers[:1]))
        return " ".join(NUMBERS[number] for number in range(start, end + step, step))
