"""Speakable words of a vocabulary, and reported unspoken ones."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.models.catalog import load_checkpoint
from antiphon.models.script import PIECE_WORDS, TextEntry, TextReader
from antiphon.models.spelling import MAX_NAMED, Speller, Spelling, Unspoken, number_words
from tests.models.test_script import spec_with


class French:
    """A vocabulary of letters and figures, as large models have: one token a letter, 0 for what it lacks."""

    vocabulary = 1000
    letters = frozenset(string.ascii_letters + string.digits + "éèç.,;!?'-")
    unsayable = frozenset({0})

    def encode(self, text: str) -> list[int]:
        return [ord(letter) if letter in self.letters else 0 for letter in text]

    def piece(self, token_id: int) -> str:
        return chr(token_id)

    def decode(self, ids: object) -> str:
        raise NotImplementedError


@pytest.fixture(scope="module")
def tiny() -> Speller:
    tokenizer = load_checkpoint("tiny-tts").text_tokenizer()
    assert tokenizer is not None
    return Speller(tokenizer)


@pytest.mark.parametrize(
    ("word", "said", "lost"),
    [
        ("snow", ["snow"], []),
        ("Snow,", ["Snow,"], []),  # the vocabulary's own rules
        ("2+2", ["2+2"], []),
        ("so\u00adon", ["soon"], []),  # soft hyphen
        ("\u200fsnow\u200e", ["snow"], []),  # direction marks
        ("\ufeffs\u200bnow\u2060", ["snow"], []),
        ("s\0now", ["snow"], []),
        ("\uff53\uff4e\uff4f\uff57", ["snow"], []),  # full width
        ("sno\u0301w", ["snow"], []),
        ("n\u00e1me", ["name"], []),
        ("\u201csnow\u201d", ["\u201csnow\u201d"], []),
        ("(snow)", ["snow"], []),
        ("snow\u2014white", ["snow", "white"], []),
        ("snow\U0001f600", ["snow"], ["\U0001f600"]),
        ("twenty-one", ["twenty", "one"], []),
        ("12", ["twelve"], []),
        ("21", ["twenty", "one"], []),
        ("35", ["three", "five"], []),  # it has no "thirty"
        ("10\u00b2", ["ten"], ["\u00b2"]),
        ("100", ["one", "zero", "zero"], []),
        ("1,000", ["one", "zero", "zero", "zero"], []),
        ("007", ["zero", "zero", "seven"], []),
        ("3.14", ["three", "one", "four"], ["3.14"]),
        ("2*3", ["two", "three"], ["*"]),
        ("2*(3+4)", ["two", "three", "+", "four"], ["*"]),
        ("(2)/3", ["two", "three"], ["/"]),
        ("1/2", ["one", "two"], ["/"]),
        ("\uff11\uff0f\uff12", ["one", "two"], ["\uff11\uff0f\uff12"]),
        ("1\\2", ["one", "two"], ["\\"]),
        ("1,5", ["one", "five"], [","]),
        ("0,125", ["zero", "one", "two", "five"], [","]),
        ("1234,567", ["one", "two", "three", "four", "five", "six", "seven"], [","]),
        ("1,2,3", ["one", "two", "three"], [",", ","]),
        ("10,000.5", ["one", "zero", "zero", "zero", "zero", "five"], ["10,000.5"]),
        ("12,", ["twelve"], []),
        ("5\u201310", ["five", "to", "ten"], []),
        ("5\u201410", ["five", "to", "ten"], []),
        ("5-10", ["five", "to", "ten"], []),  # a range ascends
        ("(5-10),", ["five", "to", "ten"], []),
        ("1,2-3", ["one", "two", "-", "three"], [","]),
        ("10-5", ["ten", "-", "five"], []),  # its "-" is said "minus"
        ("5-5", ["5-5"], []),
        ("2-5", ["two", "to", "five"], []),
        ("5-2", ["5-2"], []),
        ("2+5-10", ["two", "+", "five", "-", "ten"], []),
        ("01-02", ["zero", "one", "-", "zero", "two"], []),
        ("10\u20135", ["ten", "five"], ["\u2013"]),
        ("10:15", ["ten", "fifteen"], []),
        ("7:05.", ["seven", "zero", "five"], []),
        ("09:00", ["nine"], []),
        ("24:10", ["twenty", "four", "ten"], [":"]),
        ("3:1", ["three", "one"], [":"]),
        ("10:15:20", ["ten", "fifteen", "twenty"], [":", ":"]),
        ("1_000", ["one", "zero", "zero", "zero"], ["_"]),
        ("(-5)", ["-", "five"], []),
        ("\u20135", ["five"], ["\u2013"]),
        ("red/blue", ["red", "blue"], ["/"]),
        ("*snow*", ["snow"], []),
        ("snow*", ["snow"], []),
        ("*", [], ["*"]),
        ("/", [], ["/"]),
        ("\u2014", [], []),
        ("(", [], []),
        ("\u00ad", [], []),
        ("caf\u00e9", [], ["caf\u00e9"]),
        ("don\u2019t", [], ["don\u2019t"]),
        ("hippopotamus", [], ["hippopotamus"]),
        ("\u0441\u043d\u0435\u0433", [], ["\u0441\u043d\u0435\u0433"]),
        ("\u96ea", [], ["\u96ea"]),
        ("\U0001f600", [], ["\U0001f600"]),
        ("100%", ["one", "zero", "zero"], ["%"]),
    ],
)
def test_the_built_in_voice_says_what_it_can(
    tiny: Speller, word: str, said: list[str], lost: list[str]
) -> None:
    assert tiny.spell(word) == Spelling(said, lost)


@given(st.text(max_size=20).filter(lambda text: text.split() == [text]))
def test_a_model_is_given_nothing_that_it_cannot_say(word: str) -> None:
    french = French()
    said, _ = Speller(french).spell(word)
    assert all(french.letters.issuperset(each) for each in said)


@given(st.text(sorted(French.letters), min_size=1, max_size=20))
def test_what_a_vocabulary_has_stays_as_it_is(word: str) -> None:
    assert Speller(French()).spell(word) == Spelling([word], [])


@pytest.mark.parametrize(
    ("word", "spelling"),
    [
        ("caf\u00e9", Spelling(["caf\u00e9"], [])),
        ("1984", Spelling(["1984"], [])),
        ("na\u00efve", Spelling(["naive"], [])),
        ("don\u2019t", Spelling(["don't"], [])),
        ("\u00bd", Spelling([], ["\u00bd"])),
        ("2*3", Spelling(["2", "3"], ["*"])),  # not "23"
        ("5\u201310", Spelling(["5", "to", "10"], [])),
        ("10\u20135", Spelling(["10", "5"], ["\u2013"])),
        ("10:05", Spelling(["10", "05"], [])),
        ("3:1", Spelling(["3", "1"], [":"])),
        ("1_000", Spelling(["1", "000"], ["_"])),
        ("-5,5\U0001f600", Spelling(["-5,5"], ["\U0001f600"])),
        ("hello\U0001f600!", Spelling(["hello!"], ["\U0001f600"])),
    ],
)
def test_a_large_vocabulary_needs_little_help(word: str, spelling: Spelling) -> None:
    assert Speller(French()).spell(word) == spelling


class NoMinus(French):
    """A vocabulary whose own rules leave every hyphen out."""

    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("-", ""))


@pytest.mark.parametrize(
    ("word", "spelling"),
    [("-5", Spelling(["5"], ["-"])), ("5-3", Spelling(["5", "3"], ["-"])), ("a-b", Spelling(["a-b"], []))],
)
def test_a_minus_that_has_no_token_is_named(word: str, spelling: Spelling) -> None:
    assert Speller(NoMinus()).spell(word) == spelling


@given(st.from_regex(r"[0-9]{1,4}([*/\\:_\u2012-\u2015][0-9]{1,4}){1,3}", fullmatch=True))
def test_no_operator_between_figures_is_left_out_silently(tiny: Speller, word: str) -> None:
    parts = re.split(r"([^0-9])", word)
    unread = [
        operator
        for at, operator in enumerate(parts)
        if at % 2 and not (operator == ":" and _is_time(parts, at))
    ]
    for speller in (tiny, Speller(French())):
        said, lost = speller.spell(word)
        assert lost == ([] if "to" in said and len(parts) == 3 else unread)


def _is_time(parts: list[str], at: int) -> bool:
    """Whether the colon there stands between hours and minutes, and no further one beside them."""
    further = {*parts[at - 2 : at - 1], *parts[at + 2 : at + 3]} & {":", "_"}
    return (
        not further
        and re.fullmatch(r"([01]?[0-9]|2[0-3]):[0-5][0-9]", ":".join(parts[at - 1 : at + 2 : 2])) is not None
    )


def test_a_word_spelled_anew_is_told_as_its_caller_wrote_it() -> None:
    french = French()
    (entry,) = TextReader(spec_with(), french.encode, Speller(french)).read("so\u00adon")
    assert entry == TextEntry(tuple(french.encode("soon")), "so\u00adon", 4)


def test_tags_of_ssml_are_named_and_breaks_are_pauses() -> None:
    reader = TextReader(spec_with(), French().encode, Speller(French()))
    text = '<speak>a<break time="500ms"/><prosody rate="slow">b</prosody> \u96ea</speak>'
    entries = reader.read(text)
    assert [entry.text for entry in entries if entry.tokens] == ["a", "b"]
    assert [entry.padding_frames for entry in entries if entry.is_spoken] == [1, 6, 1]
    assert [entry for entry in entries if not entry.is_spoken] == [
        TextEntry((), text)
        for text in ("<speak>", '<prosody rate="slow">', "</prosody>", "\u96ea", "</speak>")
    ]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"), (13, "thirteen"), (20, "twenty"), (42, "forty two"), (100, "one hundred"),
        (305, "three hundred five"), (1000, "one thousand"), (9999, "nine thousand nine hundred ninety nine"),
    ],
)  # fmt: skip
def test_numbers_in_words(number: int, words: str) -> None:
    assert number_words(number) == words


def test_few_words_are_named_and_all_are_counted() -> None:
    unspoken = Unspoken()
    unspoken.add(["x" * 100, "x" * 100, *map(str, range(100))])
    assert unspoken.count == 102
    assert unspoken.names == ["x" * 40, *map(str, range(MAX_NAMED - 1))]
    assert str(unspoken.error()).startswith(
        f"this model cannot speak any word of this text: '{'x' * 40}', '0', '1'"
    )


@pytest.mark.parametrize("word", ["\ufdfa" * 4, "\ufdfa" * 4000, "1" * 4000, "a-" * 2000, "\u96ea" * 65])
def test_a_word_that_is_long_or_grows_is_not_spelled_anew(tiny: Speller, word: str) -> None:
    assert tiny.spell(word) == Spelling([], [word])


@pytest.mark.parametrize("text", ["1" * 64 + " ", "\U0001f600 ", "caf\u00e9 ", "<p> "])
def test_a_text_is_read_in_pieces_of_few_words(tiny: Speller, text: str) -> None:
    tokenizer = load_checkpoint("tiny-tts").text_tokenizer()
    assert tokenizer is not None
    reader = TextReader(spec_with(), tokenizer.encode, tiny)
    assert max(map(len, reader.pieces(text * 300))) <= 2 * PIECE_WORDS
