"""Every input of the corpus is read or refused; a fuzzer's finding ends it, with the input and a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import ProtocolError
from lab.tools.fuzz.growth import grown
from lab.tools.fuzz.process import Outcome, dictionary
from lab.tools.fuzz.table import Table
from lab.tools.fuzz.target import CORPUS, MAX_CORPUS_BYTES, MAX_WORDS, Finding, Target, read_corpus, try_input
from lab.tools.fuzz.targets import TARGETS


@pytest.fixture(autouse=True)
def _without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.models.pocket.get_reference", lambda name: pytest.fail(f"asked for {name}"))


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_of_the_corpus_is_read_or_refused(name: str) -> None:
    inputs = read_corpus(name)
    assert sum(try_input(TARGETS[name], data) for data in inputs), f"no input of {len(inputs)} is read"


def test_a_corpus_grows_by_what_reaches_new_lines() -> None:
    target = TARGETS["chat"]
    assert grown(target, [b"\x06"], [b"\x06x", b"\x06xy", b"\x01", b"\x01abc"]) == [
        b"\x06",
        b"\x01",
        b"\x06x",
    ]


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    files = {path.stem: path for path in CORPUS.iterdir()}
    assert files.keys() == TARGETS.keys()
    assert all(path.stat().st_size <= MAX_CORPUS_BYTES + 1 for path in files.values())


def test_a_refusal_of_many_words_is_a_finding() -> None:
    def refuse(data: bytes) -> None:
        raise ProtocolError("x" * len(data))

    target = Target(refuse, (ProtocolError,))
    assert not try_input(target, bytes(MAX_WORDS))
    with pytest.raises(Finding, match="a refusal of 2001 characters: xxx"):
        try_input(target, bytes(MAX_WORDS + 1))


def test_another_error_than_a_refusal_passes_through() -> None:
    def divide(data: bytes) -> None:
        assert 1 // len(data)

    with pytest.raises(ZeroDivisionError):
        try_input(Target(divide, (ProtocolError,)), b"")


def test_the_words_of_a_corpus_are_a_dictionary() -> None:
    assert dictionary([b'{"type": "session.start"}', b"\xfftype\x00a"]) == '"session.start"\n"type"\n'


def test_a_campaign_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.tools.fuzz.table.version", lambda: "abc")
    table = Table(tmp_path / "table.json")
    assert table.left("chat", 100) == 100
    table.add("chat", Outcome(40, 1.5, ""))
    table.add("ogg", Outcome(7, 0.25, "out/fuzz/ogg-crash-1"))
    again = Table(tmp_path / "table.json")
    again.add("chat", Outcome(40, 1.0, ""))
    assert (again.left("chat", 100), again.left("chat", 50), again.left("ogg", 100)) == (20, 0, 93)
    assert again.markdown().splitlines()[2:] == [
        "| `chat` | 80 | 2 | 0 | abc |",
        "| `ogg` | 7 | 0 | 1 | abc |",
    ]
