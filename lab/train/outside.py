"""What is no question of the domain: other questions, other people's sentences, other languages.

Text that is kept for the tests is marked by lab.train.held_out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lab.train import held_out as kept
from lab.train.domain import REFUSAL, Turn
from lab.train.sentences import draw_sentence
from lab.train.synthetic_voices import VARIANTS, Voice, draw_voice

ABROAD, UNKNOWN, CHAT, PROSE, MADE_UP = "foreign", "unknown", "small talk", "prose", "made up"
INTENTS: Final = (ABROAD, UNKNOWN, CHAT, PROSE, MADE_UP)
"""Of turns outside the domain: other languages, questions like its own about other things, and so on."""
SHARES: Final = (0.25, 0.25, 0.25, 0.13, 0.12)
LICENCES: Final = Path("/usr/share/common-licenses")
"""English prose that every Debian has; without it the other kinds are drawn."""


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


LIKE_QUESTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "what is {} plus {}": ("forty", "thirty two", "a hundred", "sixty", "ninety one", "minus six", "pi"),
        "how much is {} times {}": ("three", "seven", "ten", "twelve", "a half", "eleven"),
        "what colour is {}": _lines(
            """
            my shirt
            a car
            the wall
            water
            gold
            a strawberry
            her hair
            a taxi
            the flag
            copper
            an olive
            a peach
            """
        ),
        "what does a {} say": _lines(
            """
            goat
            rooster
            fox
            doctor
            donkey
            giraffe
            turkey
            whale
            parrot
            teacher
            monkey
            cricket
            """
        ),
        "what comes after {}": _lines(
            """
            easter
            lunch
            summer
            a hundred
            the war
            christmas
            dessert
            winter
            autumn
            midnight
            """
        ),
        "count from {} to {}": ("fifty", "one hundred", "minus two", "a thousand", "seventy", "forty four"),
        "what is the name of your {}": ("brother", "city", "dog", "teacher", "street", "boat", "company"),
    }
)
"""Questions as the domain asks them, about what it does not know."""
SMALL_TALK: Final = _lines(
    """
    what is the weather like today
    tell me a joke
    what time is it
    how old are you
    who wrote this song
    play some music please
    turn off the light in the kitchen
    where do you live
    set a timer for ten minutes
    how do I get to the station
    what is the capital of france
    who won the match last night
    can you sing a song for me
    do you like ice cream
    how far is the moon
    call my mother please
    what should I cook tonight
    how are you feeling this morning
    read me the news
    is it going to rain tomorrow
    when does the next bus leave
    how do you spell necessary
    what is the meaning of life
    open the garage door
    remind me to water the plants
    I would like to order a pizza
    sorry I did not catch that
    wait a moment I am looking for my glasses
    could you speak a little louder
    no that is not what I meant
    are you a real person
    who is the president
    translate this into spanish
    why is it so warm in here
    let us talk about something else
    the meeting was moved to half past three
    he said he would be here by now
    did you see what happened yesterday
    put it on the table next to the window
    hold on somebody is at the door
    """
)
FOREIGN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "fr-fr": ("où est la gare s'il vous plaît", "il fait beau ce matin", "je voudrais un café"),
        "de": ("wo hält der nächste bus", "heute regnet es den ganzen tag", "ich hätte gern ein brot"),
        "es": ("dónde está la estación", "mañana vamos a la playa", "quiero una mesa para dos"),
        "it": ("dove posso comprare un biglietto", "domani andiamo al mare", "vorrei un gelato"),
        "pl": ("gdzie jest najbliższy sklep", "jutro będzie padał deszcz", "poproszę herbatę"),
        "pt": ("onde fica a biblioteca", "hoje está muito calor", "queria um copo de água"),
        "nl": ("waar is het station", "morgen gaan we fietsen", "ik neem graag een kaartje"),
        "sv": ("var ligger stationen", "i dag skiner solen", "jag dricker gärna kaffe"),
        "ru": ("где находится вокзал", "сегодня хорошая погода", "дайте мне стакан воды"),
        "hi": ("स्टेशन कहाँ है", "आज मौसम अच्छा है", "मुझे पानी चाहिए"),
        "cmn": ("火车站在哪里", "今天天气很好", "我想喝一杯茶"),
        "tr": ("istasyon nerede", "kar ne zaman yağacak", "bir bardak su lütfen"),
        "fi": ("missä on rautatieasema", "tänään sataa vettä", "haluaisin kupin kahvia", "kiitos ei tänään"),
        "hu": ("hol van a vasútállomás", "ma szép idő van", "kérek egy pohár vizet"),
        "el": ("πού είναι η τράπεζα", "σήμερα έχει ωραίο καιρό", "θα ήθελα έναν καφέ"),
        "id": ("di mana stasiun kereta", "hari ini cuaca cerah", "saya mau segelas air"),
    }
)
"""Sentences by espeak-ng's name of their language; those of held-out languages are for the tests."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Draws what the talker is not to answer, for training or of the kind that training never hears."""

    held_out: bool = False

    def draw(self, rng: random.Random, *, rhvoice: bool = False) -> tuple[Turn, Voice]:
        """A turn outside the domain, and who says it."""
        intent = rng.choices(INTENTS, SHARES)[0]
        if intent == ABROAD:
            text, voice = self._foreign(rng)
        else:
            makers = {
                UNKNOWN: self._like_question,
                CHAT: self._small_talk,
                PROSE: self._prose,
                MADE_UP: self._made_up,
            }
            text, voice = makers[intent](rng), draw_voice(rng, held_out=self.held_out, rhvoice=rhvoice)
        return Turn(intent, text, REFUSAL, self.held_out), voice

    def _is_mine(self, text: str) -> bool:
        return kept.is_sentence_held_out(text) == self.held_out

    def _chosen(self, rng: random.Random, texts: Sequence[str]) -> str:
        return rng.choice([text for text in texts if self._is_mine(text)])

    def _like_question(self, rng: random.Random) -> str:
        while True:
            pattern = rng.choice(list(LIKE_QUESTIONS))
            text = pattern.format(*rng.sample(LIKE_QUESTIONS[pattern], pattern.count("{}")))
            if self._is_mine(text):
                return text

    def _small_talk(self, rng: random.Random) -> str:
        return self._chosen(rng, SMALL_TALK)

    def _prose(self, rng: random.Random) -> str:
        sentences = _prose(self.held_out)
        return rng.choice(sentences) if sentences else self._small_talk(rng)

    def _made_up(self, rng: random.Random) -> str:
        while True:
            text = draw_sentence(rng)
            if self._is_mine(text):
                return text

    def _foreign(self, rng: random.Random) -> tuple[str, Voice]:
        language = rng.choice([one for one in FOREIGN if (one in kept.LANGUAGES) == self.held_out])
        variants = kept.VOICES["espeak-ng"] if self.held_out else VARIANTS
        if rng.random() < 0.3:
            text = " ".join(str(rng.randint(0, 999)) for _ in range(rng.randint(2, 5)))
        else:
            text = rng.choice(FOREIGN[language])
        voice = Voice("espeak-ng", f"{language}+{rng.choice(variants)}", rng.randint(125, 200))
        return text, voice


@cache
def _prose(is_held_out: bool) -> tuple[str, ...]:
    """Sentences of 4 to 14 words of the licences in Debian, those of the tests or the others."""
    found = dict[str, None]()
    for path in sorted(LICENCES.glob("*")) if LICENCES.is_dir() else ():
        for sentence in re.split(r"[.;:!?]\s", path.read_text(errors="replace")):
            words = re.findall(r"[a-z]+", sentence.lower())
            if 4 <= len(words) <= 14:
                found[" ".join(words)] = None
    return tuple(text for text in found if kept.is_sentence_held_out(text) == is_held_out)
