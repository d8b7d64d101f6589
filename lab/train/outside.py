"""Speech that is no question of the domain: other questions, external sentences, other languages.

Text reserved for the tests is marked by lab.train.held_out.
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
from lab.train.domain import NUMBERS, REFUSAL, Turn
from lab.train.outside_texts import LARGE, PATTERNS, SMALL_TALK
from lab.train.outside_texts import UNKNOWN as UNKNOWN_OF
from lab.train.phrasings import PHRASINGS
from lab.train.sentences import draw_sentence
from lab.train.synthetic_voices import RHVOICE_RUSSIAN, VARIANTS, Voice, draw_voice
from lab.train.throats import Throat

ABROAD, UNKNOWN, CHAT, PROSE, MADE_UP = "foreign", "unknown", "small talk", "prose", "made up"
INTENTS: Final = (ABROAD, UNKNOWN, CHAT, PROSE, MADE_UP)
"""Kinds of turns outside the domain: other languages, similar questions about other things, and so on."""
RECORDED: Final = "recording"
"""A piece of a recording of people, only in evaluations."""
WORDLESS: Final = (*INTENTS, RECORDED)
"""Turns without a transcript."""
SHARES: Final = (0.2, 0.3, 0.2, 0.15, 0.15)
PATTERNS_SHARE: Final = 0.4
"""Share of the similar questions; the others are asked in the domain's own phrasings."""
LICENCES: Final = Path("/usr/share/common-licenses")
"""English prose that every Debian has; without it the other kinds are drawn."""


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

ABROAD_BY: Final[Mapping[str, tuple[tuple[str, str], ...]]] = MappingProxyType(
    {
        "fr-fr": (("pico", "fr-FR"),),
        "de": (("pico", "de-DE"),),
        "es": (("pico", "es-ES"),),
        "it": (("pico", "it-IT"),),
        "ru": tuple(("rhvoice", name) for name in RHVOICE_RUSSIAN),
    }
)
"""Programs and voices of further synthesisers, by language."""


@dataclass(frozen=True, slots=True)
class Outside:
    """A source of random speech that the talker must not answer, for training or for the tests."""

    held_out: bool = False

    def draw(self, rng: random.Random, *, further: Sequence[str] = ()) -> tuple[Turn, Voice]:
        """Draw a turn outside the domain, and its voice."""
        intent = rng.choices(INTENTS, SHARES)[0]
        if intent == ABROAD:
            text, voice = self._foreign(rng, further)
        else:
            makers = {
                UNKNOWN: self._like_question,
                CHAT: self._small_talk,
                PROSE: self._prose,
                MADE_UP: self._made_up,
            }
            text, voice = makers[intent](rng), draw_voice(rng, held_out=self.held_out, further=further)
        return Turn(intent, text, REFUSAL, self.held_out), voice

    def _is_mine(self, text: str) -> bool:
        return kept.is_sentence_held_out(text) == self.held_out

    def _chosen(self, rng: random.Random, texts: Sequence[str]) -> str:
        return rng.choice([text for text in texts if self._is_mine(text)])

    def _like_question(self, rng: random.Random) -> str:
        """Neither the whole nor its subject is in the other set."""
        while True:
            if rng.random() < PATTERNS_SHARE:
                pattern = rng.choice(list(PATTERNS))
                about = rng.sample(PATTERNS[pattern], pattern.count("{}"))
                text = pattern.format(*about)
            else:
                intent = rng.choice(list(UNKNOWN_OF))
                ways, about = PHRASINGS[intent], [rng.choice(UNKNOWN_OF[intent])]
                other = rng.choice((*NUMBERS, *filter(self._is_mine, LARGE)))
                pair = [*about, other] if rng.random() < 0.5 else [other, *about]
                slots = {"a": pair[0], "b": pair[1]} if UNKNOWN_OF[intent] is LARGE else {"a": about[0]}
                slots |= {"way": rng.choice(("up", "down")), "unit": rng.choice(("day", "month"))}
                text = rng.choice(ways.held_out if self.held_out else ways.trained).format(**slots)
            if self._is_mine(text) and all(map(self._is_mine, about)):
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

    def _foreign(self, rng: random.Random, further: Sequence[str]) -> tuple[str, Voice]:
        """Speech by espeak-ng; if ``further`` synthesisers have voices of a language, half of it by these."""
        language = rng.choice([one for one in FOREIGN if (one in kept.LANGUAGES) == self.held_out])
        if rng.random() < 0.3:
            text = " ".join(str(rng.randint(0, 999)) for _ in range(rng.randint(2, 5)))
        else:
            text = rng.choice(FOREIGN[language])
        speed = rng.randint(125, 200)
        others = [one for one in ABROAD_BY.get(language, ()) if one[0] in further]
        if others and rng.random() < 0.5:
            throat = Throat.drawn(rng) if rng.random() < 0.5 else None
            return text, Voice(*rng.choice(others), speed, rng.randint(20, 80), throat)
        variants = kept.VOICES["espeak-ng"] if self.held_out else VARIANTS
        return text, Voice("espeak-ng", f"{language}+{rng.choice(variants)}", speed)


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
