"""Every declared message comes out as it went in, and one with a field out of its range is refused."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from antiphon.errors import ProtocolError
from antiphon.ipc.message_socket import MessageBase, leaves
from antiphon.supervisor.messages import CONTROL, Body, Message

CODECS = {CONTROL: leaves(Message)}
TABLE = [(codec, kind) for codec, kinds in CODECS.items() for kind in kinds]
WHOLE = 2**53


def fitting(info: Any) -> st.SearchStrategy[Any]:
    """Values of a declared type."""
    match info:
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            low, high = (WHOLE if it is None else it for it in (info.ge, info.le))
            return st.integers(-WHOLE if info.ge is None else low, high)
        case inspect.FloatType():
            return st.floats(info.ge, info.le, allow_nan=False)
        case inspect.StrType():
            return st.text(min_size=info.min_length or 0, max_size=info.max_length or 20)
        case inspect.BytesType():
            return st.binary(min_size=info.min_length or 0, max_size=info.max_length or 20)
        case inspect.EnumType():
            return st.sampled_from(list(info.cls))
        case inspect.VarTupleType():
            items = st.lists(
                fitting(info.item_type), min_size=info.min_length or 0, max_size=info.max_length or 6
            )
            return items.map(tuple)
        case inspect.TupleType():
            return st.tuples(*map(fitting, info.item_types))
        case inspect.UnionType():
            return st.one_of(*map(fitting, info.types))
        case inspect.Metadata():
            return fitting(info.type)
        case inspect.StructType():
            return st.builds(info.cls, **{it.name: fitting(it.type) for it in info.fields})
    raise AssertionError(f"no values are known for {info}")


def spoilt(info: Any) -> list[Any]:
    """Values that a declared type does not take."""
    match info:
        case inspect.IntType() | inspect.FloatType():
            beyond = [-1 if info.ge == 0 else None, None if info.le is None else 2 * info.le + 1]
            ranged = info.ge is not None and info.le is not None
            is_not = [math.nan] if isinstance(info, inspect.FloatType) and ranged else []
            return ["1", True, [], *is_not, *(it for it in beyond if it is not None)]
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
    return [object]


@pytest.mark.parametrize(("codec", "kind"), TABLE, ids=lambda it: getattr(it, "__name__", ""))
@settings(max_examples=10)
@given(data=st.data(), number=st.integers(-WHOLE, WHOLE))
def test_a_message_comes_out_as_it_went_in(
    codec: Any, kind: type[MessageBase], data: Any, number: int
) -> None:
    message = data.draw(fitting(inspect.type_info(kind)))
    assert codec.decode(codec.encode(number, message)) == (number, message)


@pytest.mark.parametrize(("codec", "kind"), TABLE, ids=lambda it: getattr(it, "__name__", ""))
@settings(max_examples=3)
@given(data=st.data())
def test_a_field_that_does_not_fit_is_refused(codec: Any, kind: type[MessageBase], data: Any) -> None:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    whole = msgspec.to_builtins(data.draw(fitting(info)))
    for at, field in enumerate(info.fields, start=1):
        for bad in spoilt(field.type):
            wire = msgspec.msgpack.encode(
                (0, [*whole[:at], bad, *whole[at + 1 :]]), enc_hook=lambda _: {"no": 1}
            )
            with pytest.raises(ProtocolError, match="are no message"):
                codec.decode(wire)
    for wrong in ([*whole, 1], whole[:1] if any(it.required for it in info.fields) else ["?"], ["Other"], 3):
        with pytest.raises(ProtocolError, match="are no message"):
            codec.decode(msgspec.msgpack.encode((0, wrong)))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x90", b"\x91\xcc\xff", b"\x92\x00\x90", b"\x01", b"\x91" * 9999]
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    for codec in CODECS:
        with pytest.raises(ProtocolError, match=f"{len(data)} bytes on a control socket are no message"):
            codec.decode(data)


def test_every_kind_is_in_the_table() -> None:
    assert Body in CODECS[CONTROL]
    assert len(TABLE) == len({kind.__name__ for _, kind in TABLE})
