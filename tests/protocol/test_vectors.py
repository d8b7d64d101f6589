"""Reader and writer match the vector files, which cover every message."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from antiphon import errors
from antiphon.audio.ogg import OggOpusReader, OggOpusWriter
from antiphon.models.sampling import SamplingParameters
from antiphon.protocol import moshi
from antiphon.protocol.chat import AudioFormat, parse_chat_query
from antiphon.protocol.events import EVENT_KINDS, check_event
from antiphon.protocol.moshi import ControlAction, Event, Tag
from tests.protocol.vectors_json import KINDS, Vector, load, message_of

MESSAGES = load("messages.json")
QUERIES = load("queries.json")
OGG = load("ogg.json")


def name_of(vector: Vector) -> str:
    return str(vector.get("name", vector.get("query")))


@pytest.mark.parametrize("vector", MESSAGES["messages"], ids=name_of)
def test_messages_are_read_and_written_as_the_vectors_say(vector: Vector) -> None:
    message = message_of(vector["message"])
    if vector["ways"] in ("both", "decode"):
        assert moshi.decode(bytes.fromhex(vector["hex"])) == message
    if vector["ways"] in ("both", "encode"):
        assert moshi.encode(message).hex() == vector["hex"]


@pytest.mark.parametrize("vector", MESSAGES["invalid"], ids=name_of)
def test_invalid_messages_are_refused(vector: Vector) -> None:
    with pytest.raises(getattr(errors, vector["error"])) as refused:
        moshi.decode(bytes.fromhex(vector["hex"]))
    assert vector["says"] in str(refused.value)


def test_names_are_unique_and_ways_are_known() -> None:
    for vectors in (*MESSAGES.values(), *OGG.values(), QUERIES["queries"]):
        names = [vector["name"] for vector in vectors]
        assert len(set(names)) == len(names)
    assert {vector["ways"] for vector in MESSAGES["messages"]} == {"both", "decode", "encode"}


def test_every_tag_every_kind_and_every_action_has_a_vector_both_ways() -> None:
    both = [vector for vector in MESSAGES["messages"] if vector["ways"] == "both"]
    assert {int(vector["hex"][:2], 16) for vector in both} >= set(Tag)
    assert {vector["message"]["kind"] for vector in both} == set(KINDS)
    actions = {vector["message"]["action"] for vector in both if vector["message"]["kind"] == "control"}
    assert actions == {action.name.lower() for action in ControlAction}


def test_every_event_has_a_vector_that_the_table_allows() -> None:
    events = [vector["message"] for vector in MESSAGES["messages"] if vector["message"]["kind"] == "event"]
    known = [event for event in events if event["type"] in EVENT_KINDS]
    assert {event["type"] for event in known} == set(EVENT_KINDS)
    for event in known:
        check_event(Event(event["type"], event["fields"]), sender=EVENT_KINDS[event["type"]].sender)


@pytest.mark.parametrize("vector", QUERIES["queries"], ids=name_of)
def test_queries_ask_for_what_the_vectors_say(vector: Vector) -> None:
    request = parse_chat_query(vector["query"], defaults=SamplingParameters(), max_wait_s=600.0)
    assert asdict(request) == vector["request"]


@pytest.mark.parametrize("vector", QUERIES["invalid"], ids=name_of)
def test_invalid_queries_are_refused(vector: Vector) -> None:
    with pytest.raises(getattr(errors, vector["error"])) as refused:
        parse_chat_query(vector["query"], defaults=SamplingParameters(), max_wait_s=600.0)
    assert vector["says"] in str(refused.value)


def test_every_parameter_and_every_format_has_a_query() -> None:
    asked = [vector["query"] for vector in QUERIES["queries"]]
    assert set(asdict(SamplingParameters())) <= {key for query in asked for key in query}
    assert {query.get("format") for query in asked if query.get("ext") == "1"} >= set(AudioFormat)
    refused = {key for vector in QUERIES["invalid"] for key in vector["query"]}
    assert set(asdict(SamplingParameters())) <= refused


@pytest.mark.parametrize("vector", OGG["read"], ids=name_of)
def test_streams_are_read_as_the_vectors_say(vector: Vector) -> None:
    reader = OggOpusReader()
    packets = [[packet.hex() for packet in reader.feed(bytes.fromhex(chunk))] for chunk in vector["chunks"]]
    assert packets == vector["packets"]
    assert (None if reader.head is None else asdict(reader.head)) == vector["head"]
    for counter in ("granule_position", "streams", "gaps", "damaged_pages", "skipped_bytes"):
        assert getattr(reader, counter) == vector[counter], counter


@pytest.mark.parametrize("vector", OGG["invalid"], ids=name_of)
def test_invalid_streams_are_refused(vector: Vector) -> None:
    reader = OggOpusReader()
    *accepted, last = (bytes.fromhex(chunk) for chunk in vector["chunks"])
    for chunk in accepted:
        reader.feed(chunk)
    with pytest.raises(getattr(errors, vector["error"])) as refused:
        reader.feed(last)
    assert vector["says"] in str(refused.value)


@pytest.mark.parametrize("vector", OGG["written"], ids=name_of)
def test_pages_are_written_as_the_vectors_say(vector: Vector) -> None:
    writer = OggOpusWriter(vector["serial"], vector["sample_rate"], pre_skip=vector["pre_skip"])
    assert writer.headers().hex() == vector["headers"]
    for page in vector["pages"]:
        packets = [bytes.fromhex(packet) for packet in page["packets"]]
        assert writer.page(packets, page["samples"]).hex() == page["hex"]
    assert writer.finish().hex() == vector["finish"]
