"""Queries and ``set`` events: valid requests, and refusals."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ProtocolError
from antiphon.models.sampling import SamplingParameters
from antiphon.protocol.chat import ChatRequest, parameters_to_json, parse_chat_query, parse_set, parse_wait

NAMES = [field.name for field in fields(SamplingParameters)]
EXTENSION = ["ext", "format", "wait", "model", "text_prompt", "voice_prompt"]

temperatures = st.just(0.0) | st.floats(0.2, 1.2)
topks = st.just(0) | st.integers(10, 500)
seeds = st.integers(0, 2**63 - 1)
parameters = st.builds(
    SamplingParameters,
    text_temperature=temperatures,
    text_topk=topks,
    audio_temperature=temperatures,
    audio_topk=topks,
    pad_mult=st.floats(-4, 4),
    repetition_penalty_context=st.integers(0, 200),
    repetition_penalty=st.floats(1, 2),
    text_seed=seeds,
    audio_seed=seeds,
    max_steps=st.none() | st.integers(1, 2**31 - 1),
)
anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())


@given(parameters)
def test_a_query_gives_the_parameters_it_names(wanted: SamplingParameters) -> None:
    query = {name: str(value) for name, value in asdict(wanted).items() if value is not None}
    assert parse_chat_query(query, defaults=SamplingParameters(), max_wait_s=600.0).parameters == wanted


@given(parameters, parameters, st.sets(st.sampled_from(NAMES)))
def test_set_changes_what_it_names_and_nothing_else(
    current: SamplingParameters, wanted: SamplingParameters, named: set[str]
) -> None:
    values = {name: value for name, value in parameters_to_json(wanted).items() if name in named}
    assert parse_set({"parameters": values}, current) == replace(current, **values)


@given(
    st.dictionaries(st.sampled_from(NAMES + EXTENSION) | st.text(), st.text() | st.sampled_from(["1", "0"]))
)
def test_any_query_is_a_request_or_a_protocol_error(query: dict[str, str]) -> None:
    try:
        request = parse_chat_query(query, defaults=SamplingParameters(), max_wait_s=600.0)
    except ProtocolError:
        return
    assert isinstance(request, ChatRequest)


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(), anything) | anything)
def test_any_set_gives_parameters_or_a_protocol_error(values: object) -> None:
    try:
        result = parse_set({"parameters": values}, SamplingParameters())
    except ProtocolError:
        return
    for field in fields(SamplingParameters):
        value = getattr(result, field.name)
        assert type(value) is type(getattr(SamplingParameters(), field.name)) or field.name == "max_steps"
    assert parse_set({"parameters": parameters_to_json(result)}, SamplingParameters()) == result


def test_defaults_are_the_servers() -> None:
    defaults = SamplingParameters(text_temperature=0.3, audio_seed=9)
    assert parse_chat_query({"audio_topk": "10"}, defaults=defaults, max_wait_s=600.0).parameters == replace(
        defaults, audio_topk=10
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (None, "set needs an object 'parameters', got NoneType"),
        ([1], "set needs an object 'parameters', got list"),
        ({"text_temprature": 1}, "no parameter 'text_temprature'; the nearest is 'text_temperature'"),
        ({"text_topk": 25.5}, "text_topk is 25.5, a whole number is needed"),
        ({"text_topk": True}, "text_topk is true or false, a whole number is needed"),
        ({"pad_mult": "1"}, "pad_mult is '1', a number is needed"),
        ({"pad_mult": None}, "pad_mult is null, a number is needed"),
        ({"pad_mult": float("nan")}, "pad_mult is nan, -4 to 4 are allowed"),
        ({"text_seed": 10**60}, "text_seed is 1" + "0" * 39 + "..., 0 to 9223372036854775807 are allowed"),
        ({"pad_mult": 10**400}, "pad_mult is 1" + "0" * 39 + "..., -4 to 4 are allowed"),
        ({"max_steps": 0}, "max_steps is 0, 1 to 2147483647 are allowed"),
    ],
)
def test_a_set_that_cannot_be_is_refused_with_its_numbers(values: object, says: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        parse_set({"parameters": values}, SamplingParameters())
    assert says in str(refused.value)


def test_set_can_lift_the_limit_of_steps() -> None:
    limited = SamplingParameters(max_steps=100)
    assert parse_set({"parameters": {"max_steps": None}}, limited).max_steps is None


def test_a_whole_number_is_a_number_too() -> None:
    """JSON writes 1 for 1.0."""
    result = parse_set({"parameters": {"text_temperature": 1, "pad_mult": 0}}, SamplingParameters())
    assert (repr(result.text_temperature), repr(result.pad_mult)) == ("1.0", "0.0")


def test_a_wait_is_granted_whole_or_refused_with_the_limit() -> None:
    assert parse_wait({"wait": "90"}, 90.0) == 90.0
    with pytest.raises(ProtocolError, match=r"^wait is 90\.5, 0 to 90 are allowed$"):
        parse_wait({"wait": "90.5"}, 90.0)
