"""Messages round-trip, and any bytes are handled safely."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ProtocolError
from antiphon.protocol import moshi
from antiphon.protocol.moshi import Tag
from antiphon.protocol.payload import MAX_JSON_BYTES, MAX_VALUES

u32 = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(codec="utf-8"))
tenths = st.integers(0, 65535).map(lambda value: value / 10)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)
messages = st.one_of(
    st.builds(moshi.Handshake, u32, u32),
    st.builds(moshi.Audio, st.binary()),
    st.builds(moshi.Text, texts),
    st.builds(moshi.Control, st.sampled_from(moshi.ControlAction)),
    st.builds(moshi.Metadata, json_objects),
    st.builds(moshi.Error, texts),
    st.just(moshi.Ping()),
    st.builds(moshi.ColouredText, st.integers(0, 255), texts),
    st.builds(moshi.Codes, st.lists(u32).map(tuple)),
    st.builds(moshi.Event, texts.filter(bool), json_objects.filter(lambda fields: "type" not in fields)),
    st.builds(moshi.StampedAudio, u32, tenths, tenths, st.binary()),
    st.builds(moshi.Unknown, st.integers(0, 255).filter(lambda tag: tag not in set(Tag)), st.binary()),
)


@given(messages)
def test_a_message_survives_the_wire(message: moshi.Message) -> None:
    assert moshi.decode(moshi.encode(message)) == message


@given(st.binary() | st.builds(lambda tag, rest: bytes((tag,)) + rest, st.sampled_from(Tag), st.binary()))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    try:
        message = moshi.decode(data)
    except ProtocolError:
        return
    assert moshi.decode(moshi.encode(message)) == message


@given(st.sampled_from((Tag.EVENT, Tag.METADATA)), st.text('{}[]:,"\\ud8etyp10.-eNaI \n'))
def test_almost_json_is_a_message_or_a_protocol_error(tag: Tag, text: str) -> None:
    try:
        message = moshi.decode(bytes((tag,)) + text.encode())
    except ProtocolError:
        return
    assert moshi.decode(moshi.encode(message)) == message


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_times_are_rounded_to_a_tenth_of_a_millisecond_and_saturate(step_ms: float, wait_ms: float) -> None:
    sent = moshi.decode(moshi.encode(moshi.StampedAudio(0, step_ms, wait_ms, b"")))
    assert isinstance(sent, moshi.StampedAudio)
    for got, given_ms in ((sent.step_ms, step_ms), (sent.wait_ms, wait_ms)):
        assert abs(got - min(given_ms, 6553.5)) <= 0.05 + 1e-9


def test_deep_json_and_long_json_are_refused_before_they_cost_anything() -> None:
    deep = b"\x10" + b"[" * MAX_VALUES
    with pytest.raises(ProtocolError, match="not JSON"):
        moshi.decode(deep)
    with pytest.raises(ProtocolError, match="65535 brackets and commas, the limit is 32768"):
        moshi.decode(b"\x10" + b"[" * (MAX_JSON_BYTES - 1))
    with pytest.raises(ProtocolError, match="an event has 2001 values, the limit is 2000"):
        moshi.decode(b"\x10" + b'{"a":' + b"[" * MAX_VALUES)
    with pytest.raises(ProtocolError, match=r"65537 bytes of JSON, the limit is 65536"):
        moshi.decode(b"\x04" + b" " * (MAX_JSON_BYTES + 1))


def test_a_number_of_too_many_digits_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        moshi.decode(b'\x10{"type":"set","x":' + b"9" * 5000 + b"}")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (moshi.StampedAudio(2**32, 0, 0, b""), "frame is 4294967296, a u32 holds 0 to 4294967295"),
        (moshi.StampedAudio(-1, 0, 0, b""), "frame is -1"),
        (moshi.StampedAudio(0, -0.1, 0, b""), "step_ms is -0.1 ms"),
        (moshi.StampedAudio(0, 0, math.nan, b""), "wait_ms is nan ms"),
        (moshi.Handshake(2**32), "protocol_version is 4294967296"),
        (moshi.Codes((1, -1)), "a code is -1"),
        (moshi.ColouredText(256, ""), "colour is 256, a byte holds 0 to 255"),
        (moshi.Unknown(1, b""), "tag 0x01 is AUDIO, not unknown"),
        (moshi.Unknown(256, b""), "tag is 256"),
        (moshi.Text("\ud800"), "text cannot be UTF-8 at character 0"),
        (moshi.Error("a\udfff"), "an error cannot be UTF-8 at character 1"),
        (moshi.Event("x", {"a": "\ud800"}), "an event cannot be sent as JSON"),
        (moshi.Event("x", {"a": math.inf}), "an event cannot be sent as JSON"),
        (moshi.Event("x", {"a": object()}), "an event cannot be sent as JSON"),
        (moshi.Event("", {}), "an event of type ''"),
        (moshi.Event("x", {"type": "y"}), "an event of type 'x' with fields ['type']"),
        (moshi.Metadata({"a": math.nan}), "metadata cannot be sent as JSON"),
    ],
)
def test_what_the_wire_cannot_carry_is_refused_with_its_numbers(message: moshi.Message, says: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        moshi.encode(message)
    assert says in str(refused.value)


def test_json_is_compact_and_in_the_order_given_as_javascript_writes_it() -> None:
    event = moshi.Event("set", {"b": 1, "a": [0.5, "é"]})
    assert moshi.encode(event) == b'\x10{"type":"set","b":1,"a":[0.5,"' + "é".encode() + b'"]}'
