"""The conversation history sent to the text model."""

from __future__ import annotations

import pytest

from antiphon.agent.history import MAX_ENTRIES, History, HistoryEntry, Role


def said(text: str) -> HistoryEntry:
    return HistoryEntry(
        Role.ASSISTANT, words=[(word, 300 * at, 300 * (at + 1)) for at, word in enumerate(text.split())]
    )


def roles(history: History, instructions: str = "") -> list[str]:
    return [message["role"] for message in history.messages(instructions)]


def test_a_conversation_is_read_in_order_behind_its_instructions() -> None:
    history = History(4000)
    history.put("a", HistoryEntry(Role.USER, "Hello?"))
    history.put("b", said("Good day."))
    assert history.messages("Be kind.") == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Good day."},
    ]


def test_a_reply_is_cut_behind_the_last_word_that_was_heard() -> None:
    history = History(4000)
    history.put("b", said("It is a quarter past nine"))
    history.cut("b", 901)
    assert history["b"].shown == "It is a"
    history.cut("b", 299)
    assert "b" not in history


def test_words_of_sound_that_is_lost_are_left_out_also_those_to_come() -> None:
    for begin_ms, end_ms, left in ((0, 0, "abcdef"), (0, 1, "bcdef"), (150, 250, "adef"), (200, 500, "abf")):
        entry = HistoryEntry(Role.ASSISTANT)
        for place, word in enumerate("abcdef"):
            if place == 3:
                entry.lose(begin_ms, end_ms)
            entry.add_word(word, 100 * place, 100 * (place + 1))
        assert "".join(word for word, _, _ in entry.words) == left


def test_sound_lost_later_deletes_no_word_that_follows_a_lost_one_or_a_pause() -> None:
    entry = HistoryEntry(Role.ASSISTANT)
    for word, start_ms, end_ms in (("a", 0, 100), ("b", 100, 200), ("c", 200, 300), ("d", 500, 600)):
        entry.add_word(word, start_ms, end_ms)
    for begin_ms, end_ms, left in (
        (100, 200, "a c d"),
        (320, 480, "a c d"),
        (120, 180, "a c d"),
        (550, 560, "a c"),
    ):
        entry.lose(begin_ms, end_ms)
        assert entry.shown == left


def test_the_oldest_turns_give_way_and_system_texts_stay() -> None:
    history = History(100)
    history.put("s", HistoryEntry(Role.SYSTEM, "The caller is called Ada."))
    for number in range(30):
        history.put(f"u{number}", HistoryEntry(Role.USER, f"This is number {number} of many."))
    found = [message["content"] for message in history.messages("Be kind.")]
    assert found[:2] == ["Be kind.", "The caller is called Ada."]
    assert found[-1] == "This is number 29 of many."
    assert sum(HistoryEntry(Role.USER, text).tokens for text in found) <= 100
    assert len(found) > 5


def test_appended_system_texts_are_bounded_and_leave_room_for_the_conversation() -> None:
    history = History(1000)
    for number in range(500):
        history.put(f"s{number}", HistoryEntry(Role.SYSTEM, f"It is {number} degrees now."))
        history.put(f"u{number}", HistoryEntry(Role.USER, f"This is number {number} of many."))
    found = history.messages("Be kind.")
    tokens = {"system": 0, "user": 0}
    for message in found:
        tokens[message["role"]] += HistoryEntry(Role.USER, message["content"]).tokens
    assert 400 < tokens["system"] <= 507
    assert 900 < sum(tokens.values()) <= 1000
    assert [it["content"] for it in (found[0], *found[-2:])] == [
        "Be kind.",
        "It is 499 degrees now.",
        "This is number 499 of many.",
    ]


def test_system_texts_outlive_every_other_entry() -> None:
    history = History(100_000)
    history.put("s", HistoryEntry(Role.SYSTEM, "The caller is called Ada."))
    for number in range(MAX_ENTRIES + 5):
        history.put(f"u{number}", HistoryEntry(Role.USER, "x"))
    assert [name in history for name in ("s", "u5", "u6")] == [True, False, True]
    for number in range(20):
        history.put(f"long {number}", HistoryEntry(Role.USER, "x" * 65_536))
    assert [name in history for name in ("s", "long 4", "long 5")] == [True, False, True]
    for number in range(MAX_ENTRIES):
        history.put(f"s{number}", HistoryEntry(Role.SYSTEM, "y"))
    assert [name in history for name in ("s", "long 19", "s0")] == [False, False, True]
    history.put("last", HistoryEntry(Role.USER, "z"))
    assert [name in history for name in ("s0", "s1", "last")] == [False, True, True]


def test_the_last_entry_is_read_however_long_it_is() -> None:
    history = History(10)
    history.put("u", HistoryEntry(Role.USER, "long " * 500))
    assert roles(history) == ["user"]


def test_the_callers_last_turn_is_read_however_long_a_later_system_text_is() -> None:
    history = History(100)
    history.put("t", HistoryEntry(Role.USER, "Before."))
    history.put("u", HistoryEntry(Role.USER, "Hello?"))
    history.put("s", HistoryEntry(Role.SYSTEM, "long " * 500))
    assert [it["content"][:6] for it in history.messages("")] == ["Hello?", "long l"]


def test_characters_are_bounded_and_the_oldest_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.agent.history.MAX_CHARS", 10)
    history = History(4000)
    for name in ("aaaa", "bbbb", "cccc", "x" * 20):
        history.put(name, HistoryEntry(Role.USER, name))
        assert len([it for it in ("aaaa", "bbbb", "cccc") if it in history]) <= 2
    assert [it["content"] for it in history.messages("")] == ["x" * 20]


def test_outputs_follow_their_calls_whatever_was_said_meanwhile() -> None:
    history = History(4000)
    history.put("u", HistoryEntry(Role.USER, "What time is it?"))
    history.put("c1", HistoryEntry(Role.CALL, "{}", call_id="1", name="time"))
    history.put("c2", HistoryEntry(Role.CALL, '{"at":"Ur"}', call_id="2", name="weather"))
    assert roles(history) == ["user"]  # what still runs is not read
    history.put("v", HistoryEntry(Role.USER, "Still there?"))
    history.put("o2", HistoryEntry(Role.OUTPUT, "hot", call_id="2"))
    history.put("o1", HistoryEntry(Role.OUTPUT, "", call_id="1"))
    first, asked, one, two, last = history.messages("")
    assert [call["id"] for call in asked["tool_calls"]] == ["1", "2"]
    assert asked["tool_calls"][1]["function"] == {"name": "weather", "arguments": '{"at":"Ur"}'}
    assert (one, two) == (
        {"role": "tool", "tool_call_id": "1", "content": ""},
        {"role": "tool", "tool_call_id": "2", "content": "hot"},
    )
    assert (first["content"], last["content"]) == ("What time is it?", "Still there?")


def test_entries_are_put_at_their_place_forgotten_and_bounded() -> None:
    history = History(100_000)
    for name in "abc":
        history.put(name, HistoryEntry(Role.USER, name))
    history.put("first", HistoryEntry(Role.USER, "first"), after="")
    history.put("second", HistoryEntry(Role.USER, "second"), after="a")
    history.remove("b")
    history.remove("none")
    assert [it["content"] for it in history.messages("")] == ["first", "a", "second", "c"]
    assert [it["content"] for it in history.messages("", ["c", "a"])] == ["a", "c"]
    for number in range(MAX_ENTRIES + 5):
        history.put(f"n{number}", HistoryEntry(Role.USER, "x"))
    assert "c" not in history
    assert "n5" in history
    for number in range(20):
        history.put(f"long {number}", HistoryEntry(Role.USER, "x" * 65_536))
    assert f"n{MAX_ENTRIES + 4}" not in history
    assert [f"long {number}" in history for number in (3, 4, 19)] == [False, True, True]
