"""Declared messages round-trip, and fields out of range are refused."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect
from numpy.typing import NDArray

from antiphon.backends.base import BackendInfo
from antiphon.engine.admission import AdmissionOutcome, RefusedError
from antiphon.errors import (
    AntiphonError,
    DrainingError,
    ProtocolError,
    ServerFullError,
    SessionFailedError,
    StepError,
    UnsupportedError,
)
from antiphon.ipc.health import Health
from antiphon.ipc.message_socket import MAX_INLINE_BYTES, Codec, MessageBase, leaves
from antiphon.ipc.messages import NOTICES, REQUESTS, Ended, EngineFacts, Hello, Notice, Request, Unreadable
from antiphon.ipc.values import Shape
from antiphon.models.catalog import load_checkpoint
from antiphon.models.prompt import Prompt
from antiphon.models.spec import ModelSpec
from antiphon.supervisor.messages import CONTROL, Message

CODECS: dict[Codec[Any], tuple[type[MessageBase], ...]] = {
    CONTROL: leaves(Message),
    REQUESTS: leaves(Request),
    NOTICES: leaves(Notice),
}
TABLE = [(codec, kind) for codec, kinds in CODECS.items() for kind in kinds]
each_kind = pytest.mark.parametrize(("codec", "kind"), TABLE, ids=lambda it: getattr(it, "__name__", ""))
WHOLE = 2**53
MODELS = ("echo", "tiny", "tiny-stt", "tiny-tts")

ERRORS = [
    ServerFullError("full", retry_after_s=7),
    RefusedError("full", retry_after_s=7, outcome=AdmissionOutcome.FULL),
    DrainingError("leaving"),
    UnsupportedError("no prompt"),
    StepError("row 3", rows=[3]),
]


def arrays(kind: Any) -> st.SearchStrategy[NDArray[Any]]:
    return st.integers(0, 5).map(lambda count: np.arange(2 * count, dtype=kind).reshape(count, 2))


def fitting(info: Any) -> st.SearchStrategy[Any]:
    """Values of a declared type."""
    match info:
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            low, high = -WHOLE if info.ge is None else info.ge, WHOLE if info.le is None else info.le
            return st.integers(low, high)
        case inspect.FloatType():
            return st.floats(info.ge, info.le, allow_nan=False)
        case inspect.StrType():
            return st.text(min_size=info.min_length or 0, max_size=info.max_length or 20)
        case inspect.BytesType():
            return st.binary(min_size=info.min_length or 0, max_size=info.max_length or 20)
        case inspect.EnumType():
            return st.sampled_from(list(info.cls))
        case inspect.VarTupleType():
            low, high = info.min_length or 0, info.max_length or 6
            return st.lists(fitting(info.item_type), min_size=low, max_size=high).map(tuple)
        case inspect.TupleType():
            return st.tuples(*map(fitting, info.item_types))
        case inspect.DictType():
            return st.dictionaries(fitting(info.key_type), fitting(info.value_type), max_size=3)
        case inspect.UnionType():
            return st.one_of(*map(fitting, info.types))
        case inspect.Metadata():
            return fitting(info.type)
        case inspect.DataclassType() if info.cls is ModelSpec:
            return st.sampled_from([load_checkpoint(name).spec for name in MODELS])
        case inspect.DataclassType() if info.cls is Prompt:
            return st.builds(Prompt, arrays(np.int32), st.none() | arrays(np.float32))
        case inspect.StructType() | inspect.DataclassType():
            return st.builds(info.cls, **{it.name: fitting(it.type) for it in info.fields})
        case inspect.CustomType():
            return st.sampled_from(ERRORS[:-1]) if info.cls is AntiphonError else arrays(np.float32)
    raise AssertionError(f"no values are known for {info}")


def spoilt(info: Any) -> list[Any]:
    """Values that a declared type does not take."""
    match info:
        case inspect.IntType() | inspect.FloatType():
            beyond = [-2 if info.ge is not None else None, None if info.le is None else 2 * info.le + 1]
            is_ranged = isinstance(info, inspect.FloatType) and None not in (info.ge, info.le)
            return ["1", True, [], *([math.nan] * is_ranged), *(it for it in beyond if it is not None)]
        case inspect.StrType() | inspect.BytesType():
            of = (lambda count: "x" * count) if isinstance(info, inspect.StrType) else bytes
            short = [of(info.min_length - 1)] if info.min_length else []
            return [1, None, *short, *([] if info.max_length is None else [of(info.max_length + 1)])]
        case inspect.EnumType():
            return ["no such value", 7]
        case inspect.VarTupleType():
            return [7, *([bad] for bad in spoilt(info.item_type))]
        case inspect.Metadata():
            return spoilt(info.type)
        case inspect.CustomType():
            flawed = [["<f8", [1], bytes(8)], ["<f4", [3], bytes(8)], ["<f4", [-1], b""], ["|O", [1], b""]]
            return [7, [], *([["no"]] if info.cls is AntiphonError else flawed)]
    return [["no"]]


@each_kind
@settings(max_examples=10)
@given(data=st.data(), number=st.integers(-WHOLE, WHOLE))
def test_a_message_comes_out_as_it_went_in(
    codec: Any, kind: type[MessageBase], data: Any, number: int
) -> None:
    wire = codec.encode(number, data.draw(fitting(inspect.type_info(kind))))
    found_number, found = codec.decode(wire)
    assert (found_number, type(found)) == (number, kind)
    assert codec.encode(number, found) == wire


@each_kind
@settings(max_examples=3)
@given(data=st.data())
def test_a_field_that_does_not_fit_is_refused(codec: Any, kind: type[MessageBase], data: Any) -> None:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    _, whole = msgspec.msgpack.decode(codec.encode(0, data.draw(fitting(info))))
    wrong = [[*whole, 1], whole[:1] if any(it.required for it in info.fields) else ["?"], ["Other"], 3]
    for at, field in enumerate(info.fields, start=1):
        wrong += [[*whole[:at], bad, *whole[at + 1 :]] for bad in spoilt(field.type)]
    for values in wrong:
        wire = msgspec.msgpack.encode((0, values))
        try:
            number, instead = codec.decode(wire)
        except ProtocolError:
            continue
        assert isinstance(instead, Unreadable)
        assert (number, instead.call) == (0, whole[1]), "its call is to blame, and ends alone"
        assert "are no message" in instead.words


NO_MESSAGES = [b"", b"\xc1", b"\x90", b"\x91\xcc\xff", b"\x92\x00\x90", b"\x01", b"\x91" * 9999]


@pytest.mark.parametrize("data", NO_MESSAGES, ids=lambda it: it[:6].hex())
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    for codec in CODECS:
        with pytest.raises(ProtocolError, match=f"{len(data)} bytes on a control socket are no message"):
            codec.decode(data)


@pytest.mark.parametrize("error", ERRORS, ids=lambda it: type(it).__name__)
def test_an_error_keeps_its_class_and_its_words(error: AntiphonError) -> None:
    _, found = NOTICES.decode(NOTICES.encode(0, Ended("call", error)))
    assert isinstance(found, Ended)
    others: dict[type, type] = {RefusedError: ServerFullError, StepError: SessionFailedError}
    kind = others.get(type(error), type(error))
    assert (type(found.error), str(found.error)) == (kind, str(error))
    if isinstance(found.error, ServerFullError):
        assert found.error.retry_after_s == 7


@pytest.mark.parametrize("model", MODELS)
def test_a_models_facts_fit_a_message_and_stay_the_same(model: str) -> None:
    spec = load_checkpoint(model).spec
    info = BackendInfo("null", "cpu", spec, 4, versions={"numpy": "2"}, memory={"weights": 1}, row_ms=0.5)
    health = Health(True, 0.0, True, False, 0, 0, 4, 4, "ok")
    hello = Hello(0, (EngineFacts("m", info, Shape(1, 2, 3, 4), 1, 2, 3, 4, health),))
    data = NOTICES.encode(0, hello)
    assert len(data) < MAX_INLINE_BYTES / 4
    assert NOTICES.decode(data) == (0, hello)


def test_a_kind_that_is_no_text_is_refused() -> None:
    data = msgspec.msgpack.encode((0, [msgspec.msgpack.Ext(1, b"Arm"), "a call"]))
    with pytest.raises(ProtocolError):
        REQUESTS.decode(data)
