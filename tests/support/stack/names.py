"""A DNS server for loopback with Docker's answers: A records of services (RFC 1035)."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

TYPE_A = 1
NO_SUCH_NAME = 3


class Names(asyncio.DatagramProtocol):
    """Answers from ``table``, service name to addresses, as it is at that moment."""

    def __init__(self, table: Mapping[str, Sequence[str]]) -> None:
        self._table = table

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(reply(data, self._table), addr)


def reply(query: bytes, table: Mapping[str, Sequence[str]]) -> bytes:
    """The answer to a query with one question."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    question = query[12 : at + 5]
    (kind,) = struct.unpack_from(">H", query, at + 1)
    addresses = table.get(".".join(labels).lower(), ())
    found = addresses if kind == TYPE_A else ()
    flags = 0x8180 | (0 if addresses else NO_SUCH_NAME)
    head = query[:2] + struct.pack(">HHHHH", flags, 1, len(found), 0, 0)
    records = [
        struct.pack(">HHHIH", 0xC00C, TYPE_A, 1, 1, 4) + socket.inet_aton(address) for address in found
    ]
    return head + question + b"".join(records)


@asynccontextmanager
async def name_server(table: Mapping[str, Sequence[str]]) -> AsyncIterator[int]:
    """A name server on 127.0.0.1; yields its port."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: Names(table), local_addr=("127.0.0.1", 0))
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        transport.close()
