"""The held-out material of training: voices, engines, phrasings, modifications, noises, rooms, lines,
languages.

The lists are fixed before training. The tests of the models draw only from them; training draws from
everything else, and `lab/tests/train/test_held_out.py` searches its draws for them. Facts are not held out:
training has every sum, range and colour.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ENGINES: Final = ("freetts",)
"""Synthesisers without a voice in training."""
VOICES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "espeak-ng": ("f5", "m7", "iven3", "steph3", "edward2", "grandma", "klatt5", "klatt6"),
        "flite": ("rms",),
        "festival": ("kal_diphone",),
        "freetts": ("kevin16",),
        "kokoro": (
            *("af_aoede", "af_kore", "af_sarah", "am_eric", "am_onyx", "bf_emma", "bm_fable"),
            *("hm_omega", "zf_xiaobei"),
        ),
    }
)
"""By program; those of espeak-ng are variants, spoken with every accent of English.

Kokoro's natural voices are used in the natural tests, and training mixes none of them into another voice.
"""
BENDINGS: Final = ("warp", "flutter")
"""Ways to make another voice from one, see lab.train.bendings; training uses only Praat's."""
NOISES: Final = ("engine", "rain")
"""Training has similar noises: "clatter", of up to forty short bursts a second, "frying", of up to 150 clicks
that ring, and "machine", which varies slower and faster than an engine.
"""
ROOMS: Final = ("hall", "stairwell")
"""Training has the similar "large box" and "corridor"."""
INSTRUMENTS: Final = ("bell",)
LINES: Final = ("opus", "lost packets")
"""Lines that transmit the sound. Training has "loose contact", which is similar to "lost packets" (gaps of 3
to 30 ms anywhere), and, similar to Opus, the coders of lab.train.coders.
"""
LANGUAGES: Final = ("fi", "hu", "el", "id")
"""Languages of espeak-ng that training does not have, not even over English letters."""
PHRASINGS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "add": ("can you tell me {a} plus {b}", "how much is {a} and {b}"),
        "subtract": ("can you tell me {a} minus {b}", "how much is {a} take away {b}"),
        "count": ("please count {way} from {a} to {b}", "can you tell me the numbers from {a} to {b}"),
        "colour": ("can you tell me the colour of {a}", "which is the colour of {a}"),
        "sound": ("can you tell me the sound of {a}", "please tell me what {a} says"),
        "next": ("can you tell me the {unit} after {a}", "which {unit} follows {a}"),
        "name": ("can you tell me your name", "tell me who you are"),
        "greeting": ("hello good evening", "hi good afternoon"),
        "thanks": ("thanks very much", "thank you a lot"),
        "goodbye": ("bye see you later", "goodbye good night"),
    }
)
"""Phrasings of one kind of question.

The phrasings that a talker missed have been inspected, and training's own phrasings extended since: none of
them contains one of these, but some are similar: "tell me please who you are", or "can you tell me" before
other words. A recogniser's training lines are continued at random, so that one in ten thousand may be one of
these.
"""
PEOPLE: Final = "recording"
"""The program name of recordings of people, which training never uses."""
SENTENCES_SHARE: Final = 4
"""One sentence of external text in this number is reserved for the tests."""


def is_sentence_held_out(text: str) -> bool:
    """Return whether a sentence outside the domain is reserved for the tests, by its hash."""
    return hashlib.sha256(text.encode()).digest()[0] % SENTENCES_SHARE == 0


def is_answer_held_out(text: str) -> bool:
    """Return whether a synthesiser's training excludes an answer: one sum, difference or count in ten."""
    words = text.split()
    is_worked_out = {"plus", "minus"} & set(words) or not {"is", "says", "comes", "you"} & set(words)
    return bool(is_worked_out) and hashlib.sha256(text.encode()).digest()[1] % 10 == 0
