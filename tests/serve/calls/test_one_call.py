"""Any dialect, participant and transport can be combined in a call."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from antiphon.protocol import events, live, moshi
from antiphon.protocol.chat import parse_chat_query
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.participant import Participant, Place, Talker
from antiphon.serve.dialects.chat import ChatDialect
from antiphon.serve.dialects.live import LiveDialect
from antiphon.serve.hosting.served import ServedModel
from tests.serve.call_parts import Mirror, Pipe
from tests.serve.harness import FRAME_SAMPLES, PATIENCE_S, Server, serving
from tests.support.null_models import DUPLEX

SPOKEN = (np.arange(FRAME_SAMPLES) % 100 * 300).astype("<i2")


Spoken = tuple[Dialect[Any], list[bytes | str | None]]


def chat(model: ServedModel) -> Spoken:
    """The dialect, and what its client sends: a frame, and its goodbye."""
    query = {"ext": "1", "format": "pcm_s16le"}
    request = parse_chat_query(query, defaults=model.defaults, max_wait_s=1.0)
    frame = moshi.encode(moshi.Audio(SPOKEN.tobytes()))
    return ChatDialect(request, model, 0.0), [frame, moshi.encode(events.bye())]


def openai_live(model: ServedModel) -> Spoken:
    """The same in events of OpenAI Live, whose client leaves without a word."""
    start = live.decode(json.dumps({"type": "session.start", "session": {"model": model.name}}))
    assert isinstance(start, live.Start)
    audio = base64.b64encode(SPOKEN.tobytes()).decode()
    append = json.dumps({"type": "session.input_audio.append", "audio": audio})
    return LiveDialect(start, model), [append, None]


async def hold(
    server: Server, dialect: Dialect[Any], participant: Participant[Any], messages: list[bytes | str | None]
) -> bytes:
    """Send the first message, wait for a reply, and send the last; what the client got after the hello."""
    (model,) = server.services.models
    pipe, call = Pipe(), Call(server.services, model, dialect, participant)
    await call.admit()
    running = asyncio.create_task(call.run(pipe))
    async with asyncio.timeout(PATIENCE_S):
        await server.eventually(lambda: bool(pipe.sent))
        hello = len(pipe.sent)
        pipe.inbox.put_nowait(messages[0])
        await server.eventually(lambda: len(pipe.sent) > hello)
        pipe.inbox.put_nowait(messages[1])
        await running
    assert pipe.close_code == (None if messages[1] is None else 1000)
    return b"".join(it if isinstance(it, bytes) else it.encode() for it in pipe.sent[hello:])


@pytest.mark.parametrize("speak", [chat, openai_live])
async def test_a_participant_without_an_engine_answers_in_any_dialect(
    speak: Callable[[ServedModel], Spoken],
) -> None:
    async with serving(spec=DUPLEX, slots=1) as server:
        dialect, messages = speak(next(iter(server.services.models)))
        mirror = Mirror()
        written = await hold(server, dialect, mirror, messages)
        sound = SPOKEN.tobytes()[300:-300]
        assert (sound if speak is chat else base64.b64encode(sound)) in written
        assert b" t7" in written
        assert mirror.is_closed
        assert server.engine.health().active == 0


@pytest.mark.parametrize("speak", [chat, openai_live])
async def test_a_row_of_an_engine_answers_over_a_transport_without_a_network(
    speak: Callable[[ServedModel], Spoken],
) -> None:
    async with serving(slots=1) as server:
        (model,) = server.services.models
        dialect, messages = speak(model)
        row = Talker(model, Place(model.engine, model.parameters()))
        assert len(await hold(server, dialect, row, messages)) > SPOKEN.nbytes
        await server.is_empty()
