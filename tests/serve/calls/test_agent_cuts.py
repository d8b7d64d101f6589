"""A voice agent's caller whose connection is cut at any moment: no word changes on either side."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest

from antiphon.protocol import moshi
from antiphon.serve.hosting.front_end_links import FrontEndLinks
from antiphon.supervisor.messages import Link
from antiphon_client.thread import CallThread
from tests.serve.agent_client import SILENCE, agent_serving, is_left, lettered, messages_of, word
from tests.serve.asr_client import spoken
from tests.serve.calls.test_agent_resume import QUERY, REPLY
from tests.serve.harness import FRAME_SAMPLES, PATIENCE_S, Server, cut, serving
from tests.serve.tts_client import levels
from tests.support.text_model import Answer, TextModelServer, ending, piece


@asynccontextmanager
async def reached_through_another(server: Server) -> AsyncIterator[Server]:
    """Another front end of a server, which passes on the connections that resume its calls."""
    loop = asyncio.get_running_loop()

    def send(link: Link, descriptors: Sequence[int]) -> None:
        assert (link.front_end, link.address) == (1, "127.0.0.1")
        handler = server.runner.server
        assert handler is not None
        ours = socket.socket(fileno=os.dup(descriptors[0]))
        passed.append(loop.create_task(loop.connect_accepted_socket(handler, ours)))

    passed: list[asyncio.Task[Any]] = []
    server.services.links = FrontEndLinks(1, send, server.services.config.limits)
    async with serving() as other:
        other.services.links = FrontEndLinks(2, send, other.services.config.limits)
        yield other
        assert passed


class CutCaller:
    """Says words, one a turn, and is cut off whenever it has received so many messages.

    It resumes at ``again``.
    """

    def __init__(self, server: Server, words: list[list[int]], cuts: list[int], again: Server) -> None:
        self._server, self._words, self._cuts, self._again = server, words, cuts, again
        self._thread = CallThread()
        self._frames: list[bytes] = []
        self._next = self._received = 0
        self._session = ""
        self.text: list[str] = []
        self.heard: list[str] = []
        self.sound: dict[int, list[np.ndarray[Any, np.dtype[np.float32]]]] = {}
        self.turns = 0

    @property
    def resumptions(self) -> int:
        return self._thread.resumptions

    @property
    def letters(self) -> list[int]:
        pieces = [pcm for _, (pcm, *_) in sorted(self.sound.items())]
        return levels(np.concatenate(pieces), None) if pieces else []

    @property
    def is_answered(self) -> bool:
        """Whether all turns so far have their reply, in words and in sound."""
        wanted = REPLY.split() * self.turns
        return "".join(self.text).split() == wanted and self.letters == lettered(*wanted)

    async def run(self) -> None:
        """Until all is said and answered, over as many connections as it takes."""
        url, first = self._server.url(f"/api/chat?{QUERY}", "ws"), None
        self._speak()
        async with asyncio.timeout(PATIENCE_S):
            while not await self._connection(url, first):
                assert not self._thread.reason
                url = self._thread.resuming_url(self._again.url(f"/api/chat?{QUERY}", "ws"))
                first = self._thread.claim(0)

    def _speak(self) -> None:
        """The next turn."""
        pcm = spoken([*self._words[self.turns], *SILENCE]).astype("<f4").reshape(-1, FRAME_SAMPLES)
        self._frames += [moshi.encode(moshi.Audio(frame.tobytes())) for frame in pcm]
        self.turns += 1

    async def _connection(self, url: str, first: bytes | None) -> bool:
        """One connection; whether all is over."""
        async with self._server.http.ws_connect(url, max_msg_size=0) as ws:
            if first is not None:
                await ws.send_bytes(first)
            is_open = False
            async for message in ws:
                assert message.type is aiohttp.WSMsgType.BINARY
                self._received += 1
                is_open |= self._take(message.data)
                if is_open and self._cuts and self._received >= self._cuts[0]:
                    self._cuts.pop(0)
                    cut(ws)
                    return False
                if self.is_answered:
                    if self.turns == len(self._words):
                        return True
                    await self._server.eventually(self._is_heard)  # before, speech would cut the last word
                    self._speak()
                while is_open and self._next < len(self._frames):
                    self._next += 1
                    await ws.send_bytes(self._frames[self._next - 1])
                if is_open and (ack := self._thread.ack(asyncio.get_running_loop().time())) is not None:
                    await ws.send_bytes(ack)
        raise AssertionError(f"the server has closed with {ws.close_code}")

    def _is_heard(self) -> bool:
        """Whether the server takes the last sound for played."""
        (call,) = [it for it in self._server.calls if it.participant.id == self._session]
        return call.participant.is_idle

    def _take(self, data: bytes) -> bool:
        """Follow a message; whether it says that the call has begun, or continues."""
        before, inner = self._thread.resumptions, self._thread.unwrap(data)
        if self._thread.resumptions > before:
            self._next = self._thread.input_frame
            return True
        message = moshi.decode(inner or b"\x00")
        match message:
            case moshi.Text(text):
                self.text.append(text)
            case moshi.Event("ready", fields):
                self._session = fields["session"]
            case moshi.Event("heard", fields):
                self.heard.append(fields["text"])
            case moshi.StampedAudio(frame):
                pcm = np.frombuffer(message.data, "<f4").astype(np.float32)
                self.sound.setdefault(frame, []).append(pcm)
        return isinstance(message, moshi.Event) and message.type == "ready"


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_cuts_at_any_moment_change_no_word_of_either_side(is_elsewhere: bool) -> None:
    """Each caller says three words, and is cut up to six times, where chance has it.

    It resumes at its front end, or ``is_elsewhere``.
    """
    text = TextModelServer(
        usual=Answer([*[piece(f"{it} ") for it in REPLY.split()], *ending()], pause_s=0.01)
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(text.serve())
        server = again = await stack.enter_async_context(agent_serving(text, slots=8))
        if is_elsewhere:
            again = await stack.enter_async_context(reached_through_another(server))
        chance, callers, told = random.Random(4), [], []
        for number in range(8):
            words = [word(20 + 10 * number + 2 * turn) for turn in range(3)]
            cuts = sorted(chance.sample(range(3, 110), 6)) if number else []
            callers.append(CutCaller(server, [said for said, _ in words], cuts, again))
            told.append([written for _, written in words])
        await asyncio.gather(*(it.run() for it in callers))
        await is_left(server)
    found = [messages_of(text, at) for at in range(len(text.requests))]
    for caller, written in zip(callers, told, strict=True):
        assert caller.heard == written
        assert all(len(pieces) == 1 for pieces in caller.sound.values())  # nothing is heard twice
        history: list[tuple[str, str]] = []
        for each in written:
            history.append(("user", each))
            assert found.count(history) == 1
            history.append(("assistant", REPLY))
    assert len(found) == 24
    assert sum(it.resumptions for it in callers) > 25
