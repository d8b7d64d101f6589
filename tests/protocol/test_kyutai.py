"""Messages of Kyutai's speech recognition: vectors, and refusals that name the fault."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon import errors
from antiphon.errors import ProtocolError
from antiphon.protocol import kyutai
from tests.protocol.vectors_json import Vector, load

VECTORS = load("stt.json")
DECODE = {"client": kyutai.decode_client, "server": kyutai.decode_server}
KINDS = {
    kind.__name__: kind
    for kind in (
        *(kyutai.Init, kyutai.Audio, kyutai.OggOpus, kyutai.Marker),
        *(kyutai.Ready, kyutai.Step, kyutai.Word, kyutai.EndWord, kyutai.Error),
    )
}


def name_of(vector: Vector) -> str:
    return str(vector["name"])


def message_of(value: Vector) -> Any:
    fields = {name: field for name, field in value.items() if name != "kind"}
    if "data" in fields:
        fields["data"] = bytes.fromhex(fields["data"])
    if "pcm" in fields:
        fields["pcm"] = np.array(fields["pcm"], np.float32)
    if "prs" in fields:
        fields["prs"] = tuple(fields["prs"])
    return KINDS[value["kind"]](**fields)


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=name_of)
def test_messages_are_read_and_written_as_the_vectors_say(vector: Vector) -> None:
    message, data = message_of(vector["message"]), bytes.fromhex(vector["hex"])
    assert DECODE[vector["from"]](data) == message
    if vector["ways"] == "both":
        assert kyutai.encode(message).hex() == vector["hex"]


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=name_of)
def test_invalid_messages_are_refused(vector: Vector) -> None:
    with pytest.raises(getattr(errors, vector["error"])) as refused:
        DECODE[vector["from"]](bytes.fromhex(vector["hex"]))
    assert vector["says"] in str(refused.value)


def test_every_kind_has_a_vector_both_ways_and_names_are_unique() -> None:
    both = {vector["message"]["kind"] for vector in VECTORS["messages"] if vector["ways"] == "both"}
    assert both == set(KINDS)
    for vectors in VECTORS.values():
        assert len({vector["name"] for vector in vectors}) == len(vectors)


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]))
ids = st.integers(-(2**63), 2**63 - 1)
clients = st.one_of(
    st.just(kyutai.Init()),
    st.lists(finite, max_size=40).map(lambda values: kyutai.Audio(np.array(values, np.float32))),
    st.binary(max_size=100).map(kyutai.OggOpus),
    ids.map(kyutai.Marker),
)
servers = st.one_of(
    st.just(kyutai.Ready()),
    st.builds(
        kyutai.Step,
        st.integers(0, 2**63 - 1),
        st.lists(finite, max_size=6).map(tuple),
        st.integers(0, 2**40),
    ),
    st.builds(kyutai.Word, texts, st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(kyutai.EndWord, st.floats(allow_nan=False, allow_infinity=False)),
    ids.map(kyutai.Marker),
    texts.map(kyutai.Error),
)


@given(clients)
def test_what_a_client_says_comes_back_as_it_was(message: kyutai.ClientMessage) -> None:
    assert kyutai.decode_client(kyutai.encode(message)) == message


@given(servers)
def test_what_a_server_says_comes_back_as_it_was(message: kyutai.ServerMessage) -> None:
    assert kyutai.decode_server(kyutai.encode(message)) == message


@given(st.lists(finite, max_size=40))
def test_samples_are_written_as_other_writers_write_them(values: list[float]) -> None:
    written = kyutai.encode(kyutai.Audio(np.array(values, np.float32)))
    assert written == msgpack.packb({"type": "Audio", "pcm": values}, use_single_float=True)


def test_a_second_and_more_than_a_hundred_thousand_samples_are_one_message() -> None:
    for samples in (15, 16, 65_535, 65_536, 100_000):
        audio = kyutai.Audio(np.linspace(-1, 1, samples, dtype=np.float32))
        assert kyutai.decode_client(kyutai.encode(audio)) == audio
        doubles = msgpack.packb({"type": "Audio", "pcm": audio.pcm.tolist()})
        assert kyutai.decode_client(doubles) == audio


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=12,
)
fields = st.dictionaries(st.sampled_from(["id", "pcm", "data", "text", "prs", "message", "step_idx"]), values)
kinds = st.sampled_from([*KINDS, "Nobody"])


def packed(value: Any) -> bytes:
    return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))


anything = st.one_of(
    st.binary(max_size=200),
    values.map(packed),
    st.builds(lambda kind, rest: packed({"type": kind, **rest}), kinds, fields),
    st.builds(lambda message, cut: kyutai.encode(message)[:cut], clients, st.integers(0, 60)),
    st.builds(lambda message, more: kyutai.encode(message) + more, clients, st.binary(max_size=9)),
)


@given(anything)
@example(b"\x82\xa4type\xa5Audio\xa3pcm")  # cut where its samples begin
def test_whatever_comes_is_a_message_or_a_protocol_error(data: bytes) -> None:
    for decode in DECODE.values():
        try:
            message = decode(data)
        except ProtocolError:
            continue
        assert type(message).__name__ in KINDS


def test_what_cannot_be_sent_is_said() -> None:
    with pytest.raises(ProtocolError, match="Word cannot be sent: 'utf-8' codec can't encode"):
        kyutai.encode(kyutai.Word("\ud800", 0.0))
    with pytest.raises(ProtocolError, match="Marker cannot be sent"):
        kyutai.encode(kyutai.Marker(2**64))


def test_an_error_keeps_what_it_quotes_short() -> None:
    with pytest.raises(ProtocolError) as refused:
        kyutai.decode_client(packed({"type": "x" * 10_000}))
    assert len(str(refused.value)) < 200
