"""Frames as a client sends them, masked by default."""

from __future__ import annotations

from hypothesis import strategies as st

from antiphon.serve.transport.frames import BINARY, PING, TEXT

MASK = b"\x01\x02\xfd\xfc"


def client_frame(opcode: int, payload: bytes, *, is_final: bool = True, is_masked: bool = True) -> bytes:
    size, bit = len(payload), 0x80 if is_masked else 0
    first = bytes(((0x80 if is_final else 0) | opcode,))
    if size < 126:
        length = bytes((bit | size,))
    elif size < 65536:
        length = bytes((bit | 126,)) + size.to_bytes(2, "big")
    else:
        length = bytes((bit | 127,)) + size.to_bytes(8, "big")
    if not is_masked:
        return first + length + payload
    return first + length + MASK + bytes(byte ^ MASK[index % 4] for index, byte in enumerate(payload))


MESSAGES = st.lists(
    st.one_of(
        st.tuples(st.just(BINARY), st.binary(max_size=300)),
        st.tuples(st.just(BINARY), st.integers(0, 70_000).map(bytes)),
        st.tuples(st.just(TEXT), st.text(max_size=200)),
        st.tuples(st.just(PING), st.binary(max_size=125)),
    ),
    max_size=6,
)
