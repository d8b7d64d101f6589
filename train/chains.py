"""Sums of several numbers: so many that they cannot be remembered, and have to be worked out."""

from __future__ import annotations

import numpy as np

from train.domain import NUMBERS, Domain

LONGEST = 4


class Chains:
    """Draws sentences such as "two plus nine minus four is seven", no result below zero or above twenty.

    A chain in which any step is a held-out sum or difference is never drawn.
    """

    def __init__(self, domain: Domain) -> None:
        value = {word: number for number, word in enumerate(NUMBERS)}
        self._known = {
            (value[fact.slots["a"]], sign, value[fact.slots["b"]])
            for sign, intent in ((1, "add"), (-1, "subtract"))
            for fact in domain.trained[intent]
        }

    def draw(self, rng: np.random.Generator) -> str:
        """The words of a chain of two to four numbers and its result."""
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
