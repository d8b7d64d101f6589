"""Telephone calls with a voice agent: null models, a scripted text model, a telephone with marks."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from antiphon.agent.values import (
    COMPLETED,
    INTERRUPTED,
    AskReply,
    ReplyBegan,
    ReplyOver,
    ReplySound,
    Truncate,
)
from antiphon.audio import g711
from antiphon.audio.g711 import Law
from antiphon.audio.pcm import FloatArray
from antiphon.protocol import media_streams as wire
from antiphon.serve.calls.values import Instruct
from antiphon.serve.dialects.media_stream import MediaStreamLine
from antiphon.serve.dialects.telephone import AgentTelephoneDialect
from tests.protocol.test_media_streams import TELNYX, TWILIO
from tests.serve.agent_client import agent_serving, is_left, lettered, messages_of
from tests.serve.dialects.test_telephone import FRAME_BYTES, Line, line
from tests.serve.harness import FRAME_SAMPLES, Closed, Server
from tests.support.text_model import Answer, TextModelServer, says

LONG = "one two three four five six seven eight nine ten"
LOUD = (96, 92)
"""Letters that G.711 keeps: a word of them is loud."""


def dialled(tokens: Sequence[int]) -> FloatArray:
    """Words at 8 kHz, which the null recogniser hears in the middle of each frame; then silence."""
    half = np.zeros(FRAME_BYTES // 2, np.float32)
    spoken = np.repeat(np.array([*tokens, *[0] * 12], np.float32) / 1000, FRAME_BYTES)
    return np.concatenate([half, spoken, half])


class Phone:
    """What plays a call's sound; ``played`` says whether it sends marks back, in order."""

    def __init__(self, caller: Line) -> None:
        self.caller, self.sound = caller, list[FloatArray]()
        self.marks: list[str] = []

    async def next(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.caller.ws.receive_str())
        if event["event"] == "media":
            law = Law.A if "stream_id" in event else Law.MU
            self.sound.append(g711.decode(base64.b64decode(event["media"]["payload"]), law))
        elif event["event"] == "mark":
            self.marks.append(event["mark"]["name"])
        return event

    @property
    def letters(self) -> list[int]:
        """What the null synthesiser has said: of each letter how many its word has."""
        late = np.concatenate([*self.sound, np.zeros(0, np.float32)])[FRAME_BYTES - 40 :: FRAME_BYTES]
        return [level for it in late if (level := round(1000 * float(it)))]

    async def hears(self, letters: int) -> None:
        """Wait for so many letters."""
        while len(self.letters) < letters:
            await self.next()

    async def is_cleared(self) -> None:
        while (await self.next())["event"] != "clear":
            pass

    async def speaks_on(self) -> None:
        """Say one loud word in real time, until it is cancelled."""
        while True:
            await self.caller.speak(np.full(FRAME_BYTES, LOUD[0] / 1000, np.float32))
            await asyncio.sleep(0.08)

    async def play(self, name: str) -> None:
        await self.caller.ws.send_json({"event": "mark", "mark": {"name": name}})


@asynccontextmanager
async def phoning(
    *answers: Answer,
    path: str = "/twilio",
    start: dict[str, Any] = TWILIO,
    model: str = "assistant",
    **agent: Any,
) -> AsyncIterator[tuple[Phone, TextModelServer, Server]]:
    async with TextModelServer(*answers).serve() as text, agent_serving(text, agent=agent) as server:
        async with line(server, path, start) as caller:
            await caller.begin(**({"model": model} if model else {}))
            yield Phone(caller), text, server
        await is_left(server)
        await text.is_idle.wait()


@pytest.mark.parametrize(
    ("path", "start", "model"),
    [
        ("/twilio", TWILIO, "assistant"),
        ("/telnyx?model=assistant", TELNYX, ""),
        ("/m/assistant/twilio", TWILIO, ""),
    ],
)
async def test_a_caller_asks_and_is_answered(path: str, start: dict[str, Any], model: str) -> None:
    async with phoning(says("it is one"), path=path, start=start, model=model) as (phone, text, _):
        law = Law.A if start is TELNYX else Law.MU
        await phone.caller.speak(dialled(LOUD), law)
        await phone.hears(len("itisone"))
        assert phone.letters == lettered("it", "is", "one")
        assert messages_of(text) == [("user", "-".join(map(str, LOUD)))]
        while len(phone.marks) < len(phone.sound):
            await phone.next()
        ends = np.cumsum([it.size for it in phone.sound])
        assert phone.marks == [f"1 {1000 * end // 8000}" for end in ends]
        await phone.caller.ws.send_json({"event": "stop"})
        assert await phone.caller.closed() == Closed(1000, "done")


async def test_a_turn_ends_also_where_the_telephone_sends_no_silence() -> None:
    async with phoning(says("yes")) as (phone, text, _):
        pcm = dialled(LOUD)
        await phone.caller.speak(pcm[: (len(LOUD) + 1) * FRAME_BYTES])
        await phone.hears(len("yes"))
        assert messages_of(text) == [("user", "-".join(map(str, LOUD)))]
        await phone.caller.ws.send_json({"event": "stop"})


async def test_parameters_of_the_start_say_who_the_agent_is() -> None:
    async with (
        TextModelServer().serve() as text,
        agent_serving(text, agent={"instructions": "Be brief."}) as server,
    ):
        async with line(server) as caller:
            await caller.begin(instructions="Be kind.", voice="nobody's")  # an agent answers without a name
            await caller.speak(dialled(LOUD))
            await Phone(caller).hears(1)
            assert messages_of(text)[0] == ("system", "Be kind.")
        await is_left(server)


async def test_speech_clears_what_waits_and_unplayed_words_are_not_in_the_history() -> None:
    async with phoning(says("yes"), greeting=LONG) as (phone, text, _):
        await phone.hears(10)
        played = next(it for it in phone.marks if int(it.split()[1]) > 400)
        await phone.play(played)
        speaking = asyncio.ensure_future(phone.speaks_on())
        await phone.is_cleared()
        speaking.cancel()
        await phone.play(phone.marks[-1])  # a service sends back the marks of what it has cleared
        while not text.requests:
            await phone.next()
        said = [content.split() for role, content in messages_of(text) if role == "assistant"]
        heard = said[0] if said else []
        assert heard == LONG.split()[: len(heard)]
        assert sum(len(word) + 1 for word in heard) <= 6  # frames of 80 ms: silence and the letters of each
        await phone.hears(1)


class Call:
    """A dialect whose agent and telephone are the test."""

    def __init__(self, server: Server) -> None:
        start = wire.decode(json.dumps(TWILIO))
        assert isinstance(start, wire.StreamStart)
        self.dialect = AgentTelephoneDialect(MediaStreamLine(start), server.services.agents["assistant"])

    def says(self, *news: Any) -> list[str]:
        return [json.loads(it)["event"] for each in news for it in self.dialect.messages(each)]

    def hears(self, **event: Any) -> list[Any]:
        actions = self.dialect.feed(json.dumps({"event": next(iter(event)), **event}))
        return [it.request for it in actions if isinstance(it, Instruct)]


async def test_only_marks_of_the_reply_under_way_say_what_was_played() -> None:
    sound = ReplySound("item", np.full(FRAME_SAMPLES, 0.1, np.float32))
    cut = ReplyOver(INTERRUPTED)
    async with TextModelServer().serve() as text, agent_serving(text) as server:
        call = Call(server)
        assert call.says(ReplyBegan(None), sound, sound, cut) == ["media", "mark"] * 2 + ["clear"]
        assert call.hears(mark={"name": "1 80"}) == []  # no mark had come: the service may send none
        call.says(ReplyBegan(AskReply(server.services.agents["assistant"].settings)), sound, sound, sound)
        for name in ("1 160", "2 80", "2 9999", "2 ", "2 -1", "2 \u0661", "said 1", "x" * 256):
            assert call.hears(mark={"name": name}) == []
        assert call.says(cut) == ["clear"]
        assert call.hears(dtmf={"digit": "1"}) == [Truncate("item", 80)]
        assert call.hears(dtmf={"digit": "1"}) == []
        assert call.says(ReplyBegan(None), sound, ReplyOver(COMPLETED)) == ["media", "mark"]
        assert call.says(ReplyBegan(None), cut) == []  # nothing of it waits at the telephone
