"""An interrupted reply: the words that a client without buffering has played are kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, cast

import numpy as np

from antiphon.agent.chat_stream import Piece, ReplyEnded, TextPiece
from antiphon.agent.history import History
from antiphon.agent.values import ReplyOver, ReplySound
from antiphon.protocol.kyutai_tts import Spoken
from antiphon.serve.calls.agent_reply import LEAD_S, MAX_READY, Reply

FRAME_S = 0.08
RATE = 24_000


class Voice:
    """A synthesiser that says each word in some frames, in bursts and with pauses of its own."""

    rate = RATE

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.ready = chance, list[Any]()
        self.frames, self.words, self.is_ended = 0, 0, False

    @property
    def is_done(self) -> bool:
        return self.is_ended and not self.ready

    def read(self, words: str) -> Iterator[int]:
        for word in words.split():
            start_s, length = self.frames * FRAME_S, self.chance.randint(1, 5)
            self.ready += [np.zeros(round(FRAME_S * RATE), np.float32)] * length
            self.frames += length
            self.words += 1
            self.ready.append(Spoken(word, start_s, round(self.frames * FRAME_S, 3)))
        yield len(words)

    def finish(self, now_s: float) -> None:
        self.is_ended = True

    def advance(self, now_s: float, *, may_take: bool) -> list[Any]:
        count = self.chance.choice((0, 0, 1, 3)) if may_take else 0
        taken, self.ready = self.ready[:count], self.ready[count:]
        return taken


class Client:
    """Plays what it gets at once, and waits where nothing is left."""

    def __init__(self) -> None:
        self.received_s = self.played_s = self.now_s = 0.0

    def pass_time(self, now_s: float) -> None:
        self.played_s = min(self.received_s, self.played_s + now_s - self.now_s)
        self.now_s = now_s


async def saying(words: int) -> AsyncGenerator[Piece]:
    yield TextPiece(" ".join(f"word{number}" for number in range(words)))
    yield ReplyEnded()


async def begun(words: int, voice: Voice, wake: Callable[[], None] = lambda: None) -> Reply:
    """A reply whose text is all there."""
    reply = Reply(
        saying(words),
        cast("Any", voice),
        asked=None,
        is_early=False,
        sorry="",
        new_id=lambda kind: kind,
        wake=wake,
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return reply


async def cut_once(seed: int) -> int:
    """One reply, held and continued at random, and cut; how many words of it were kept."""
    chance, client = random.Random(seed), Client()
    reply = await begun(30, Voice(chance))
    until_s = chance.uniform(0.0, 6.0)
    while client.now_s < until_s:
        client.pass_time(client.now_s + chance.uniform(0.001, 0.1))
        for news in reply.advance(client.now_s, may_take=chance.random() < 0.9):
            if isinstance(news, ReplySound):
                client.received_s += news.pcm.size / RATE
        assert client.received_s - client.played_s <= LEAD_S + 1e-6, seed
        if reply.has_sound and chance.random() < 0.02:  # its connection breaks, and there is another
            sent_s, client.received_s = client.received_s, chance.uniform(client.played_s, client.received_s)
            client.pass_time(client.now_s + chance.uniform(0.0, 1.0))
            reply.rewind(sent_s - client.received_s, client.now_s)
            client.received_s = sent_s
        if chance.random() < 0.03:
            (reply.resume if reply.is_held else reply.hold)(client.now_s)
    heard_ms = reply.heard_ms(client.now_s)
    assert heard_ms <= 1000 * client.played_s + 1e-6, seed
    history = History(1000)
    history.put(reply.item, reply.entry)
    history.cut(reply.item, heard_ms)
    kept = history[reply.item].words if reply.item in history else []
    assert all(end_ms <= 1000 * client.played_s + 1e-6 for _, _, end_ms in kept), seed
    assert [word for word, _, _ in kept] == [f"word{number}" for number in range(len(kept))]
    reply.over("interrupted")
    return len(kept)


async def test_no_word_is_kept_of_two_hundred_replies_that_was_not_heard() -> None:
    kept = [await cut_once(seed) for seed in range(200)]
    assert sum(kept) > 400


async def test_a_long_text_is_read_over_many_turns() -> None:
    voice, wakes = Voice(random.Random(0)), list[None]()
    reply = await begun(2000, voice, lambda: wakes.append(None))
    read = 0
    while read < 2000:
        wakes.clear()
        reply.advance(0.0, may_take=False)
        assert 0 < voice.words - read <= 64
        assert wakes or voice.words == 2000
        read = voice.words
    reply.over("cancelled")


async def test_sound_of_a_reply_waits_with_the_synthesiser() -> None:
    voice = Voice(random.Random(0))
    reply = await begun(100, voice)
    reply.advance(0.0, may_take=True)
    reply.hold(0.0)
    for _ in range(200):
        reply.advance(0.0, may_take=True)
    pieces = voice.frames + voice.words - len(voice.ready)
    assert MAX_READY <= pieces <= MAX_READY + round(LEAD_S / FRAME_S) + 3 + 3  # sent, and a burst above it
    reply.over("cancelled")


async def test_a_reply_is_over_when_a_client_has_heard_it_that_plays_a_frame_later() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        reply = await begun(3, Voice(chance))
        now_s, end_s, is_over = 0.0, 0.0, False
        while not is_over:
            now_s = min(now_s + chance.uniform(0.001, 0.1), max(reply.due_s, now_s + 0.001))
            for news in reply.advance(now_s, may_take=True):
                is_over |= isinstance(news, ReplyOver)
                if isinstance(news, ReplySound):
                    end_s = max(end_s, now_s) + news.pcm.size / RATE
        assert end_s + FRAME_S - 1e-6 <= now_s <= end_s + FRAME_S + 0.002, seed
