"""Long texts and large messages: bounded before processing, and processed in pieces."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest

from antiphon.errors import ProtocolError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.script import PIECE_WORDS, TextEntry
from antiphon.protocol import kyutai, kyutai_tts
from antiphon.protocol.kyutai_tts import MAX_TEXT_BYTES, Text
from antiphon.serve.calls.synthesiser import MAX_PENDING_WORDS
from tests.serve.asr_client import transcribing
from tests.serve.harness import Closed, Server, serving
from tests.serve.tts_client import TTS, listening, speaker

LONGEST = "a " * (MAX_TEXT_BYTES // 2)
A_TURN = 4 * PIECE_WORDS
"""From one look of the tests to the next lie parts of two turns, each of fewer than two pieces."""


class CountingTokenizer:
    """Counts the words it is given between two turns of the event loop."""

    letters, unsayable = frozenset("a-0"), frozenset({0})

    def __init__(self) -> None:
        self.total = self.turn = self.most = 0

    def encode(self, _text: str) -> list[int]:
        self.total += 1
        self.turn += 1
        self.most = max(self.most, self.turn)
        return [7]

    async def watch(self) -> None:
        while True:
            self.turn = 0
            await asyncio.sleep(0)


@dataclass(frozen=True)
class CountingCheckpoint(Checkpoint):
    """A checkpoint without files, whose tokenizer counts."""

    tokenizer: CountingTokenizer = field(default_factory=CountingTokenizer)

    def text_tokenizer(self) -> Any:
        return self.tokenizer


@contextlib.asynccontextmanager
async def counting(step_s: float = 0.02, slots: int = 2) -> AsyncIterator[tuple[Server, CountingTokenizer]]:
    """A server of text to speech, and what its event loop does in a turn."""
    checkpoint = CountingCheckpoint(TTS, TTS.name, Path("/nowhere"), {})
    tokenizer = checkpoint.tokenizer
    _, backend = speaker(slots, step_ms=1000 * step_s)
    async with serving(model=(checkpoint, backend), slots=slots) as server:
        watching = asyncio.create_task(tokenizer.watch())
        try:
            yield server, tokenizer
        finally:
            watching.cancel()


@pytest.mark.parametrize("is_packed", [True, False])
async def test_a_text_that_is_too_long_is_refused_before_it_is_read(is_packed: bool) -> None:
    text = "a " * (MAX_TEXT_BYTES // 2) + "b"
    async with counting() as (server, tokenizer), listening(server) as client:
        await (client.send(Text(text)) if is_packed else client.ws.send_str(text))
        error = await client.until(kyutai.Error)
        assert error.message == "a text of 65537 bytes, the limit is 65536; send it in several"
        assert (await client.until(Closed)).code == 1007
        assert tokenizer.total == 0
        await server.is_empty()


def words_kept() -> int:
    """Words that anything in this process holds on to, other tests' too."""
    gc.collect()
    return sum(type(it) is TextEntry for it in gc.get_objects())


async def test_letters_of_several_bytes_count_as_such() -> None:
    with pytest.raises(ProtocolError, match="a text of 65538 bytes"):
        kyutai_tts.decode_client("\u20ac" * 21_846)
    assert kyutai_tts.decode_client("\u20ac" * 21_845) == Text("\u20ac" * 21_845)


async def test_the_longest_text_is_read_in_pieces_and_no_further_than_there_is_room() -> None:
    async with counting() as (server, tokenizer), listening(server) as client:
        await client.send(Text(LONGEST))
        await server.eventually(lambda: tokenizer.total >= MAX_PENDING_WORDS)
        await asyncio.sleep(0.2)
        assert tokenizer.most <= A_TURN
        assert tokenizer.total < 4 * MAX_PENDING_WORDS, "32,768 words were sent"


async def test_the_longest_text_by_post_is_read_in_pieces() -> None:
    text = LONGEST[: MAX_TEXT_BYTES - 100]
    async with counting() as (server, tokenizer):
        others = words_kept()
        async with server.http.post(server.url(kyutai_tts.PATH), json={"text": text}) as response:
            assert response.status == 200
            assert tokenizer.total >= len(text) // 2
            assert tokenizer.most <= A_TURN
            kept = words_kept() - others
            assert kept < 4 * MAX_PENDING_WORDS, "the collector walks all that are kept"
            response.close()
        await server.is_empty()


async def test_many_texts_take_no_more_of_a_turn_than_a_few() -> None:
    async with counting(slots=16) as (server, tokenizer), contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(listening(server)) for _ in range(8)]
        url = server.url(kyutai_tts.PATH)
        posts = [asyncio.create_task(server.http.post(url, json={"text": "a " * 2000})) for _ in range(8)]
        for client in clients:
            await client.send(Text("a " * 1000))
        await server.eventually(lambda: tokenizer.total >= 8 * 2000 + 8 * 1000)
        assert tokenizer.most <= A_TURN
        for post in posts:
            post.cancel()


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ([[]] * 200_000, "200000 exceeds max_array_len(24576)"),
        ([[]] * 20_000, "it has more than 16 arrays and maps"),
        ([{}] * 20_000, "it has more than 16 arrays and maps"),
        ([[0] * 20_000, [0] * 20_000], "its arrays have more than 24576 items"),
    ],
)
async def test_what_a_field_that_means_nothing_holds_is_bounded(field: Any, says: str) -> None:
    data = msgpack.packb({"type": "Init", "unknown": field})
    with pytest.raises(ProtocolError) as caught:
        kyutai.decode_client(data)
    assert str(caught.value) == f"{len(data)} bytes are no msgpack: {says}"
    async with transcribing() as (server, _):
        async with server.http.ws_connect(server.url(kyutai.PATH, "ws")) as ws:
            await ws.send_bytes(data)
            while (message := await ws.receive()).type is not message.type.CLOSE:
                pass
            assert message.data == 1007
        await server.is_empty()


def test_nested_arrays_take_no_memory_for_items_that_do_not_come() -> None:
    data = b"\x81\xa1a" + b"\xdd\x00\x01\xff\xff" * 1000 + bytes(140_000)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="are no msgpack: incomplete input"):
            kyutai.decode_client(data)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000, "1 GB is what their lengths state"
    finally:
        tracemalloc.stop()


def test_a_field_that_means_nothing_may_hold_a_little() -> None:
    data = msgpack.packb({"type": "Marker", "id": 3, "unknown": [{"a": [1, 2]}, {}], "more": {"b": []}})
    assert kyutai.decode_client(data) == kyutai.Marker(3)
