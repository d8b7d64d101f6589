"""Messages of Kyutai's text to speech: round trips, and refusals with a reason."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import errors
from antiphon.errors import ProtocolError
from antiphon.protocol import kyutai, kyutai_tts
from antiphon.protocol.kyutai_tts import Eos, SpeechFormat, Spoken, Text, TtsQuery, Voice
from tests.protocol.vectors_json import Vector, load

VECTORS = load("tts.json")
DECODE = {"client": kyutai_tts.decode_client, "server": kyutai_tts.decode_server}
ENCODE: dict[str, Callable[[Any], bytes]] = {
    "client": kyutai_tts.encode_client,
    "server": kyutai_tts.encode_server,
}
KINDS = {
    kind.__name__: kind
    for kind in (Text, Voice, Eos, kyutai.Ready, kyutai.Audio, kyutai.OggOpus, Spoken, kyutai.Error)
}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
times = st.floats(0, 1e6)


def name_of(vector: Vector) -> str:
    return str(vector["name"])


def message_of(value: Vector) -> Any:
    fields = {name: field for name, field in value.items() if name != "kind"}
    if "data" in fields:
        fields["data"] = bytes.fromhex(fields["data"])
    for name in {"pcm", "embeddings"} & fields.keys():
        fields[name] = np.array(fields[name], np.float32)
    if "shape" in fields:
        fields["shape"] = tuple(fields["shape"])
    return KINDS[value["kind"]](**fields)


def comparable(message: Any) -> Any:
    if isinstance(message, Voice):
        return message.shape, message.embeddings.dtype, message.embeddings.tolist()
    return message


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=name_of)
def test_messages_are_read_and_written_as_the_vectors_say(vector: Vector) -> None:
    message = message_of(vector["message"])
    data = vector["text"] if "text" in vector else bytes.fromhex(vector["hex"])
    assert comparable(DECODE[vector["from"]](data)) == comparable(message)
    if vector["ways"] == "both":
        assert ENCODE[vector["from"]](message).hex() == vector["hex"]


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


@given(texts)
def test_a_clients_words_are_read_from_either_frame(text: str) -> None:
    assert kyutai_tts.decode_client(text) == Text(text)
    assert kyutai_tts.decode_client(kyutai_tts.encode_client(Text(text))) == Text(text)


def test_the_end_is_a_byte_or_a_message() -> None:
    assert kyutai_tts.decode_client(b"\0") == Eos()
    assert kyutai_tts.decode_client(kyutai_tts.encode_client(Eos())) == Eos()


def test_a_voice_keeps_its_numbers_and_its_shape() -> None:
    embeddings = np.linspace(0, 2, 12, dtype=np.float32)
    found = kyutai_tts.decode_client(kyutai_tts.encode_client(Voice(embeddings, (1, 4, 3))))
    assert isinstance(found, Voice)
    assert np.array_equal(found.array(), embeddings.reshape(1, 4, 3))


@given(texts, times, times)
def test_what_a_server_says_comes_back(text: str, start_s: float, stop_s: float) -> None:
    pcm = np.linspace(-1, 1, 5, dtype=np.float32)
    for message in (
        kyutai.Ready(), kyutai.Audio(pcm), kyutai.OggOpus(text.encode()), Spoken(text, start_s, stop_s),
        kyutai.Error(text),
    ):  # fmt: skip
        assert kyutai_tts.decode_server(kyutai_tts.encode_server(message)) == message


def test_a_word_is_called_text_on_the_wire() -> None:
    assert msgpack.unpackb(kyutai_tts.encode_server(Spoken("hi", 0.5, 1.0))) == {
        "type": "Text", "text": "hi", "start_s": 0.5, "stop_s": 1.0,
    }  # fmt: skip


@given(st.binary(max_size=60))
def test_random_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    for decode in (kyutai_tts.decode_client, kyutai_tts.decode_server):
        with contextlib.suppress(ProtocolError):
            decode(data)


@given(
    st.dictionaries(
        st.sampled_from(["type", "text", "embeddings", "shape", "pcm", "data", "start_s", "message"]),
        st.sampled_from(["Text", "Voice", "Eos", "Audio", "OggOpus", "Error"])
        | st.lists(st.floats() | st.integers(-(2**63), 2**63) | st.none(), max_size=4)
        | st.integers(-5, 2**40),
    )
)
def test_random_fields_are_a_message_or_a_protocol_error(fields: dict[str, Any]) -> None:
    for decode in (kyutai_tts.decode_client, kyutai_tts.decode_server):
        with contextlib.suppress(ProtocolError):
            decode(msgpack.packb(fields))


def test_a_query_says_format_voice_and_wait() -> None:
    assert kyutai_tts.parse_query({}, max_wait_s=600.0) == TtsQuery(SpeechFormat.OGG, None, 0.0)
    query = {"format": "PcmMessagePack", "voice": "a/b.wav", "wait": "3", "auth_id": "x", "seed": "1"}
    assert kyutai_tts.parse_query(query, max_wait_s=600.0) == TtsQuery(
        SpeechFormat.PCM_PACKED, "a/b.wav", 3.0
    )
    with pytest.raises(ProtocolError, match="format is 'pcm'; there is: PcmMessagePack, OggOpusMessagePack"):
        kyutai_tts.parse_query({"format": "pcm"}, max_wait_s=600.0)
    assert [it.is_packed for it in SpeechFormat] == [True, True, False, False]
    assert [it.is_ogg for it in SpeechFormat] == [False, True, False, True]


def test_a_post_says_text_and_perhaps_a_voice() -> None:
    assert kyutai_tts.parse_post(b'{"text": "hi", "voice": "a", "more": 1}') == ("hi", "a")
    assert kyutai_tts.parse_post(b'{"text": "hi"}') == ("hi", None)
    with pytest.raises(ProtocolError, match="voice is a int, text is needed"):
        kyutai_tts.parse_post(b'{"text": "hi", "voice": 3}')
