"""API keys: the file, their place in a request, and reloading."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.install import antiphon_command
from antiphon.serve.access import new_key
from antiphon.serve.access.keys import (
    KeyEntry,
    KeyFile,
    chosen_subprotocol,
    digest_of,
    find_key,
    format_key,
    parse_keys,
    presented_key,
)

NAMES = st.from_regex(r"\A[A-Za-z0-9._@-]{1,64}\Z")
LIMITS = st.none() | st.integers(0, 999_999)
KEYS = st.lists(
    st.builds(KeyEntry, NAMES, st.binary(min_size=32, max_size=32), LIMITS, LIMITS),
    min_size=1,
    max_size=8,
    unique_by=lambda key: key.name,
)


@given(KEYS)
def test_a_file_is_read_as_it_was_written(keys: list[KeyEntry]) -> None:
    text = "# who may call\n\n" + "".join(f"  {format_key(key)}  \r\n" for key in keys)
    assert list(parse_keys(text, "keys.txt")) == keys


@pytest.mark.parametrize(
    "line",
    [
        "secret",
        "alice:secret",
        "al ice:" + "0" * 64,
        f":{'0' * 64}",
        *(f"a:{'0' * 64}{rest}" for rest in (":x", ":", "::", ":1:x", ":1:2:3")),
        f"a:{'g' * 64}",
    ],
)
def test_a_line_that_is_none_is_told_by_its_number_and_not_quoted(line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_keys(f"# keys\n{line}\n", "keys.txt")
    assert str(refused.value) == (
        "keys.txt line 2 is not NAME:SHA256[:SESSIONS[:SECONDS]]; "
        f"{antiphon_command('keys NAME')} makes such a line"
    )


def test_a_name_twice_and_a_file_without_keys(tmp_path: Path) -> None:
    line = format_key(KeyEntry("a", digest_of("x")))
    with pytest.raises(ConfigError, match=r"^keys line 2: the name 'a' is there twice$"):
        parse_keys(f"{line}\n{line}\n", "keys")
    file = tmp_path / "keys"
    file.write_text("# nobody\n")
    with pytest.raises(ConfigError, match=r"keys holds no key, so it refuses every request; "):
        KeyFile(file)


@pytest.mark.parametrize(
    ("headers", "query", "key"),
    [
        ({}, {}, None),
        ({"Authorization": "Bearer k-1"}, {}, "k-1"),
        ({"Authorization": "bearer  k-1"}, {}, "k-1"),
        ({"Authorization": "Basic dTpw"}, {"auth_id": "k-2"}, "k-2"),
        ({"kyutai-api-key": "k-1"}, {"auth_id": "k-2"}, "k-1"),
        ({"Authorization": "Bearer k-0", "kyutai-api-key": "k-1"}, {}, "k-0"),
        ({"x-api-key": "k-1"}, {"auth_id": "k-2"}, "k-1"),
        ({"Authorization": "Bearer k-0", "x-api-key": "k-1"}, {}, "k-0"),
        ({}, {"auth_id": "k-1"}, "k-1"),
        ({}, {"worker_auth_id": "k-1", "auth_id": ""}, "k-1"),
        ({}, {"worker_auth_id": ""}, None),
        ({"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.k-1, openai-beta.v1"}, {}, "k-1"),
        ({"Sec-WebSocket-Protocol": "realtime"}, {}, None),
    ],
)
def test_where_clients_put_their_key(headers: dict[str, str], query: dict[str, str], key: str | None) -> None:
    assert presented_key(headers, query) == key


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        ("realtime, openai-insecure-api-key.k-1, openai-beta.v1", "realtime"),
        (" openai-insecure-api-key.k-1 ,openai-beta.v1", "openai-beta.v1"),
        ("openai-insecure-api-key.k-1", "openai-insecure-api-key.k-1"),
        (", a b, r\udce9, realtime", "realtime"),
        ("a b", None),
        ("", None),
    ],
)
def test_a_subprotocol_that_carries_no_key_is_preferred(offered: str, selected: str | None) -> None:
    assert chosen_subprotocol({"Sec-WebSocket-Protocol": offered}) == selected
    assert chosen_subprotocol({}) is None


@given(KEYS, st.text(max_size=50))
def test_only_the_key_itself_is_found(keys: list[KeyEntry], guess: str) -> None:
    known = KeyEntry("me", digest_of("the key"))
    assert find_key([*keys, known], "the key") is known
    assert find_key([*keys, known], guess) is None
    assert find_key([*keys, known], known.digest.hex()) is None  # what the file holds lets nobody in


def write(path: Path, *names: str) -> None:
    path.write_text("".join(format_key(KeyEntry(name, digest_of(f"key of {name}"))) + "\n" for name in names))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.txt"
    write(path, "alice")
    keys = KeyFile(path)
    assert keys.find("key of alice")
    assert not keys.find("key of bob")
    write(path, "bob")
    assert keys.find("key of bob")
    assert not keys.find("key of alice")
    path.write_text("key of carol")
    assert keys.find("key of bob")
    assert "keys not read again" in caplog.text
    assert "carol" not in caplog.text
    path.unlink()
    assert keys.find("key of bob")
    write(path, "carol")
    assert keys.find("key of carol")
    write(path)  # the last one is taken away
    assert not keys.find("key of carol")


def test_a_file_that_looks_unchanged_is_read_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    write(path, "alice")
    keys, stat = KeyFile(path), path.stat()
    write(path, "carol")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    keys.reread()
    assert keys.find("key of carol")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read the API keys in .*none\.txt: No such file"):
        KeyFile(tmp_path / "none.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary: it is not text$"):
        KeyFile(tmp_path / "binary")


def test_a_new_key_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert new_key.main(["alice", "--sessions", "3"]) == 0
    line, said = capsys.readouterr()
    match = re.search(r": ([0-9a-f]{48})\n$", said)
    assert match
    assert match[1] not in line
    (key,) = parse_keys(line, "line")
    assert (key.name, key.sessions) == ("alice", 3)
    assert find_key([key], match[1]) is key


def test_a_key_of_ones_own_is_not_repeated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("public_token\n"))
    assert new_key.main(["unmute", "--stdin"]) == 0
    line, said = capsys.readouterr()
    assert said == ""
    assert find_key(parse_keys(line, "line"), "public_token")


@pytest.mark.parametrize(
    ("argv", "typed", "sentence"),
    [
        (["a b"], "", "'a b' names no key: 1 to 64 letters, digits, and any of . _ @ -"),
        (["a", "--sessions", "-1"], "", "--sessions -1: 0 (any number) to 999999 is allowed"),
        (["a", "--stdin"], "short\n", "the key has 5 characters; the least is 12"),
    ],
)
def test_a_key_that_cannot_be_made(
    argv: list[str], typed: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        new_key.main(argv)
