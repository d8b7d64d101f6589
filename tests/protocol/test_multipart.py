"""Multipart forms with files: any parts in any fragments, and invalid forms."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ProtocolError
from antiphon.protocol.multipart import MAX_HEAD_BYTES, MAX_PARTS, FormReader, boundary_of
from tests.support.held import held_bytes

BOUNDARY = b"1a2b"
DELIMITER = b"\r\n--" + BOUNDARY
NEAR = [b"", b"\r\n", b"\r\n--1a2", b"--1a2b", b"\r", b"\r\n--1a", DELIMITER[:-1]]
"""Data that is nearly a delimiter."""

names = st.text(
    st.characters(codec="ascii", exclude_characters='"\\%', min_codepoint=33), min_size=1, max_size=9
)
data = st.lists(st.one_of(st.sampled_from(NEAR), st.binary(max_size=20)), max_size=6).map(b"".join)
parts = st.lists(
    st.tuples(names, st.booleans(), data.filter(lambda it: DELIMITER not in b"\r\n" + it + b"\r\n"))
)


def form(found: list[tuple[str, bool, bytes]], padding: bytes = b"") -> bytes:
    body = b""
    for name, is_file, value in found:
        head = f'Content-Disposition: form-data; name="{name}"' + ('; filename="a.b"' if is_file else "")
        body += (
            DELIMITER[2:] + padding + b"\r\n" + head.encode() + b"\r\nX-Other: 1\r\n\r\n" + value + b"\r\n"
        )
    return body + DELIMITER[2:] + b"--\r\n"


def read(body: bytes, sizes: list[int]) -> tuple[list[tuple[str, bool, bytes]], FormReader]:
    """The parts of a form that comes in portions of these sizes, over and over."""
    reader, start = FormReader(BOUNDARY), 0
    found: list[tuple[str, bool, bytes]] = []
    cycle = itertools.cycle(sizes)
    while start < len(body):
        size = next(cycle)
        for piece in reader.feed(body[start : start + size]):
            if piece.is_first:
                found.append((piece.name, piece.is_file, b""))
            name, is_file, before = found[-1]
            assert (piece.name, piece.is_file) == (name, is_file)
            found[-1] = name, is_file, before + piece.data
        start += size
    return found, reader


@given(parts, st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_every_part_comes_whole_in_any_portions(
    found: list[tuple[str, bool, bytes]], sizes: list[int]
) -> None:
    if found and len(found) <= MAX_PARTS:
        heard, reader = read(form(found), sizes)
        assert heard == found
        assert reader.is_complete


@given(
    parts.filter(bool),
    st.sampled_from([b"", b"\r\n", b"\r\n\r\n", b"This form is in parts.\r\n", b"--1a\r\n"]),
    st.sampled_from([b"", b" ", b"\t  "]),
    st.sampled_from([b"", b"\r\n", b"That was all.\r\n--1a2b\r\n"]),
    st.integers(1, 40),
)
def test_preamble_padding_and_epilogue_mean_nothing(
    found: list[tuple[str, bool, bytes]], preamble: bytes, padding: bytes, epilogue: bytes, size: int
) -> None:
    if len(found) <= MAX_PARTS:
        heard, reader = read(preamble + form(found, padding) + epilogue, [size])
        assert heard == found
        reader.check_complete()


@given(parts.filter(bool), st.floats(0, 0.999))
def test_a_truncated_form_is_never_complete(found: list[tuple[str, bool, bytes]], cut: float) -> None:
    body = form(found)[:-2]
    _, reader = read(body[: int(cut * (len(body) - 1))] or b"-", [7])
    assert not reader.is_complete


@given(
    st.one_of(
        st.binary(max_size=300), st.lists(st.sampled_from([*NEAR, DELIMITER, b"\r\n\r\n"])).map(b"".join)
    )
)
def test_nonsense_is_refused_or_waited_for(body: bytes) -> None:
    for start in (b"", DELIMITER[2:], DELIMITER[2:] + b"\r\n"):
        try:
            read(start + body or b"-", [11])
        except ProtocolError:
            continue


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"\n" * 9000, "the first 8192 bytes of this form have no line '--1a2b', its boundary"),
        (b"--other\r\n" * 1000, "the first 8192 bytes of this form have no line '--1a2b', its boundary"),
        (b"--1a2b3\r\n\r\n\r\n", "begins with its boundary and continues with other text"),
        (b"--1a2b\r\nContent-Disposition: form-data\r\n\r\n", "a part of this form has no name"),
        (b"--1a2b\r\n\r\n\r\n", "a part of this form has no name"),
        (b"--1a2b" + b"x" * (MAX_HEAD_BYTES + 1), "a part with more than 8192 bytes of headers"),
        (form([("a", False, b"")] * (MAX_PARTS + 1)), "a form of more than 64 parts, which is the limit"),
    ],
)
def test_what_is_no_form_is_refused_in_words(body: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        read(body, [1000])


def test_a_part_keeps_little_however_long_it_is() -> None:
    reader = FormReader(BOUNDARY)
    head, _, _ = form([("file", True, b"")]).partition(b"\r\n\r\n")
    list(reader.feed(head + b"\r\n\r\n"))
    for _ in range(100):
        list(reader.feed(bytes(65_536)))
    assert held_bytes(reader) < 1000


def test_nothing_is_read_behind_the_end() -> None:
    reader = FormReader(BOUNDARY)
    assert len(list(reader.feed(form([("a", False, b"b")]) + b"more"))) == 2
    assert not list(reader.feed(b"more"))


@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        ("multipart/form-data; boundary=1a2b", b"1a2b"),
        ('Multipart/Form-Data; charset=utf-8; boundary="1a 2b"', b"1a 2b"),
    ],
)
def test_the_boundary_is_in_the_header(header: str, boundary: bytes) -> None:
    assert boundary_of(header) == boundary


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("", "the body is of no stated type, multipart/form-data is needed"),
        ("application/json", "the body is application/json, multipart/form-data is needed"),
        (
            "multipart/form-data",
            "multipart/form-data without a boundary; leave this header to the HTTP library",
        ),
        ("multipart/form-data; boundary=", "a boundary of 0 bytes, 1 to 70 are needed"),
        ("multipart/form-data; boundary=" + "x" * 71, "a boundary of 71 bytes, 1 to 70 are needed"),
    ],
)
def test_what_names_no_boundary_is_refused(header: str, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        boundary_of(header)


@given(st.text(max_size=80))
def test_any_header_is_read_or_refused(header: str) -> None:
    for start in ("", "multipart/form-data; boundary", "multipart/form-data; boundary="):
        try:
            assert boundary_of(start + header)
        except ProtocolError:
            continue
