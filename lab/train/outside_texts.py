"""Questions and sentences outside the domain, as text: see lab.train.outside for their use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


def _parts(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(","))


LARGE: Final = _parts(
    """
    thirty, thirty two, forty, forty four, fifty, fifty five, sixty, sixty one, seventy, seventy three,
    eighty, eighty eight, ninety, ninety one, a hundred, one hundred, two hundred, a thousand, a
    million, minus one, minus two, minus six, a half, a quarter, pi, a dozen, twenty one, twenty five,
    twenty nine
    """
)
"""Numbers that the domain does not have."""
UNKNOWN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "add": LARGE,
        "subtract": LARGE,
        "count": LARGE,
        "colour": _parts(
            """
            my shirt, a car, the wall, water, gold, silver, a strawberry, her hair, a taxi, the flag,
            copper, an olive, a peach, a tiger, the moon, a rose, a table, your jacket, the carpet, a
            bus, an apple, a pear, honey, butter, bread, coffee, tea, rice, the door, a brick, a camel,
            a penguin, a crow, a swan, sand, the river, smoke, ink, paper, a mirror, glass, rust, a
            pumpkin, a grape, salt, pepper, a violin, the roof, a stone, a cow, a dog, a mouse, a horse,
            a wolf, a fire engine, my bicycle, a shadow, a rainbow, an onion, a potato, the desert
            """
        ),
        "sound": _parts(
            """
            a goat, a rooster, a fox, a doctor, a donkey, a giraffe, a turkey, a whale, a parrot, a
            teacher, a monkey, a cricket, a sheep, a chicken, a bear, an eagle, a fish, a rabbit, a
            tiger, a crocodile, a dolphin, a turtle, a baby, a train, a clock, a telephone, a judge, a
            camel, a goose, a pigeon, a frog, a spider, a zebra, a hippo, a crow, a swan, a kangaroo, a
            car, the wind, a drum, a piano, an elephant
            """
        ),
        "next": _parts(
            """
            easter, lunch, summer, a hundred, the war, christmas, dessert, winter, autumn, midnight,
            breakfast, dinner, spring, the weekend, school, work, noon, the storm, this song, chapter
            two, the letter b, the meeting, the holidays, the game, twenty, thunder, new year, the
            concert, the second act, the rain
            """
        ),
    }
)
"""Subjects that are not in the domain, by the kind of question about them."""
PATTERNS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "how much is {} times {}": _parts(
            "three, seven, ten, twelve, a half, eleven, two, five, nine, twenty"
        ),
        "what is {} divided by {}": _parts("three, seven, ten, twelve, eleven, two, five, nine, twenty"),
        "what is the name of {}": _parts(
            """
            your brother, your city, your dog, your teacher, your street, your boat, your company, this
            place, the queen, that song, my sister, the river, the author, her husband, our neighbour,
            this game
            """
        ),
        "where is {}": _parts(
            """
            my telephone, the station, your brother, the kitchen, france, the moon, a doctor, my hat,
            the cat
            """
        ),
        "how old is {}": _parts("the queen, your sister, this house, the earth, a tree, the dog, my friend"),
        "who is {}": _parts(
            """
            your brother, the king, this woman, my teacher, the captain, at the door, on the telephone,
            calling
            """
        ),
        "how do you spell {}": _parts(
            "necessary, monday, elephant, banana, rhythm, your name, chocolate, colour"
        ),
        "count the {}": _parts(
            "apples, days, people in the room, stars, letters, cows, words in this sentence"
        ),
        "do you like {}": _parts(
            "ice cream, music, my hat, the sea, chocolate, dogs, mondays, snow, to sing, me"
        ),
    }
)
"""Questions that are similar to the domain's, but outside of it."""
SMALL_TALK: Final = _parts(
    """
    what is the weather like today, tell me a joke, what time is it, how old are you, who wrote this
    song, play some music please, turn off the light in the kitchen, where do you live, set a timer for
    ten minutes, how do I get to the station, what is the capital of france, who won the match last
    night, can you sing a song for me, do you like ice cream, how far is the moon, call my mother
    please, what should I cook tonight, how are you feeling this morning, read me the news, is it going
    to rain tomorrow, when does the next bus leave, how do you spell necessary, what is the meaning of
    life, open the garage door, remind me to water the plants, I would like to order a pizza, sorry I
    did not catch that, wait a moment I am looking for my glasses, could you speak a little louder, no
    that is not what I meant, are you a real person, who is the president, translate this into spanish,
    why is it so warm in here, let us talk about something else, the meeting was moved to half past
    three, he said he would be here by now, did you see what happened yesterday, put it on the table
    next to the window, hold on somebody is at the door, what did you have for breakfast, I am tired, I
    have no idea, that is very kind of you, what do you think about it, how was your day, can we meet on
    friday at five, there are nine people in the house, my dog is older than yours, the cat has eaten
    all the milk, I saw a lion at the zoo, she counted the money twice, it was a cold night in january,
    the sky is full of stars, the grass needs cutting, we will see each other again, he asked for her
    name, tell me more about yourself, what are you doing, stop it, say that again, never mind, I do not
    understand, what is this, why not, of course, yes please, no thank you I am fine, all right then,
    that is enough, give me a minute, come here, go away, be quiet please, louder, help me, is anybody
    there, can you hear me, who told you that, what happened next, how much does it cost, how many are
    left, which one is yours, what is on television tonight, where did I put my keys, book a table for
    two at eight, send a message to my sister, turn the heating up by two degrees, what is the score,
    how tall is that tower, is the shop still open, I need a taxi to the airport, my name is peter, this
    is my friend anna, we went there on monday and came back on thursday, three of them were broken, I
    paid twelve for it, the train leaves at seventeen past nine, add some salt and pepper, take the
    second street on the left, count me in, what a lovely colour, that sounds good, the day after
    tomorrow, see what I mean
    """
)

ABROAD_SENTENCES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "es": _parts(
            """
            buenos días cómo está usted, dónde vive tu hermana, hoy hace mucho frío, me gusta leer por la
            noche, el tren sale a las ocho, no entiendo la pregunta, qué hora es por favor, tengo que
            comprar leche y pan, mi perro duerme en la cocina, cuánto cuesta este libro, nos vemos el
            lunes, la ventana está abierta
            """
        ),
        "fr-fr": _parts(
            """
            bonjour comment allez vous, où habite ta sœur, il fait très froid ce soir, j'aime lire avant
            de dormir, le train part à huit heures, je ne comprends pas la question, quelle heure est il,
            il faut acheter du lait, mon chien dort dans la cuisine, combien coûte ce livre, à lundi
            prochain, la fenêtre est ouverte
            """
        ),
        "it": _parts(
            """
            buongiorno come sta, dove abita tua sorella, oggi fa molto freddo, mi piace leggere la sera,
            il treno parte alle otto, non capisco la domanda, che ore sono per favore, devo comprare
            latte e pane, il mio cane dorme in cucina, quanto costa questo libro, ci vediamo lunedì, la
            finestra è aperta
            """
        ),
        "pt": _parts(
            """
            bom dia como vai você, onde mora a sua irmã, hoje está muito frio, gosto de ler à noite, o
            trem sai às oito, não entendo a pergunta, que horas são por favor, preciso comprar leite e
            pão, meu cachorro dorme na cozinha, quanto custa este livro, até segunda feira, a janela está
            aberta
            """
        ),
        "hi": _parts(
            """
            नमस्ते आप कैसे हैं, आपकी बहन कहाँ रहती है, आज बहुत ठंड है, मुझे रात को पढ़ना पसंद है, गाड़ी आठ
            बजे जाती है, मैं सवाल नहीं समझा, अभी कितने बजे हैं, मुझे दूध और रोटी चाहिए, मेरा कुत्ता रसोई में
            सोता है, यह किताब कितने की है, सोमवार को मिलते हैं, खिड़की खुली है
            """
        ),
        "ja": _parts(
            """
            おはようございます げんきですか, えきは どこですか, きょうは とても さむいです, よる ほんを
            よむのが すきです, でんしゃは はちじに でます, しつもんが わかりません, いま なんじですか,
            ぎゅうにゅうを かいます, いぬは だいどころで ねています, この ほんは いくらですか, また
            げつようびに, まどが あいています
            """
        ),
        "cmn-latn-pinyin": _parts(
            """
            ni3hao3 ni3 zen3me5yang4, huo3che1zhan4 zai4 na3li3, jin1tian1 hen3 leng3, wo3 xi3huan1
            wan3shang4 kan4shu1, huo3che1 ba1dian3 kai1, wo3 bu4 dong3 ni3 de5 wen4ti2, xian4zai4
            ji3dian3, wo3 yao4 mai3 niu2nai3, wo3 de5 gou3 zai4 chu2fang2 shui4jiao4, zhe4ben3 shu1
            duo1shao3 qian2, xing1qi1yi1 jian4, chuang1hu4 kai1 zhe5
            """
        ),
    }
)
"""Sentences of languages for which Kokoro has voices: a fourth of them is for the tests."""
