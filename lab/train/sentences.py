"""Sentences for the codec's corpus: a small grammar, numbers, and made-up words for every sound."""

from __future__ import annotations

import random


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split(","))


SUBJECTS = _phrases(
    """
    the cat, a small dog, my sister, our teacher, the old captain, every child, that engineer, the
    river, a quiet street, the morning train, her brother, some people, the red balloon, an honest
    doctor, the judge, a thin grey mouse, your neighbour, this machine, the church choir, a young
    author, both of them, nobody here
    """
)
VERBS = _phrases(
    """
    opened, watched, remembered, carried, followed, painted, forgot, found, measured, repaired,
    listened to, walked past, called about, wrote about, looked for, chose, enjoyed, judged, threw
    away, thanked, weighed, visited, understood
    """
)
OBJECTS = _phrases(
    """
    the window, seven green apples, a broken radio, the long bridge, an ancient map, the blue house,
    thirty two letters, a cup of coffee, the northern station, his first guitar, a bright yellow
    jacket, nothing at all, the second question, a thousand stars, the zoo, five fresh fish, the
    usual joke, a treasure chest, smooth white paper
    """
)
TAILS = _phrases(
    """
    yesterday, in the garden, before breakfast, without a word, for the third time, near the ocean,
    on a cold evening, because it was raining, while the music played, at half past nine, again and
    again, very slowly, for pleasure, under the thick ice, with both hands, in July, as usual,
    though nobody asked
    """
)
OPENERS = _phrases(
    """
    well, no, yes, hello, good morning, thank you, please, of course, I think, maybe, excuse me,
    goodbye
    """
)
ONSETS = _phrases(
    """
    b, bl, br, ch, d, dr, f, fl, fr, g, gl, gr, h, j, k, kl, kr, l, m, n, p, pl, pr, r, s, sh, sk,
    sl, sm, sn, sp, st, str, t, th, tr, v, w, y, z
    """
)
NUCLEI = _phrases(
    """
    a, e, i, o, u, ai, ee, oa, oo, ou, oy, ar, er, or, ie
    """
)
CODAS = _phrases(
    """
    b, d, f, g, k, l, m, n, p, r, s, t, v, z, ng, nk, nd, st, sh, th, ch,
    """
)


def _made_up(rng: random.Random) -> str:
    syllables = rng.randint(1, 3)
    return "".join(rng.choice(ONSETS) + rng.choice(NUCLEI) + rng.choice(CODAS) for _ in range(syllables))


def draw_sentence(rng: random.Random) -> str:
    """Draw a random sentence of two to eight seconds when spoken."""
    kind = rng.random()
    if kind < 0.35:
        return " ".join(_made_up(rng) for _ in range(rng.randint(4, 9)))
    if kind < 0.5:
        a, b = rng.randint(0, 20), rng.randint(0, 999)
        return f"{rng.choice(OPENERS)}, {a} and {b} is not {rng.randint(0, 99)}, {rng.choice(TAILS)}"
    core = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)} {rng.choice(TAILS)}"
    return f"{rng.choice(OPENERS)}, {core}" if rng.random() < 0.4 else core
