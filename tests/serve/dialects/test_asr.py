"""``/api/asr-streaming`` over sockets: complete, in order, with markers and named errors."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from antiphon.audio.codecs import make_encoder
from antiphon.protocol import kyutai
from antiphon.protocol.kyutai import Audio, EndWord, Error, Init, Marker, OggOpus, Ready, Step, Word
from tests.serve.asr_client import DELAY_FRAMES, PAUSES, STT, scribe, sentence, spoken, transcribing
from tests.serve.harness import FRAME_SAMPLES, Closed

SECOND = np.zeros(24_000, np.float32)
BROKEN = 99
"""A token that a row cannot hear."""


@pytest.mark.parametrize("pause_s", [0.0, 0.004])
async def test_the_stock_clients_flow_loses_nothing(pause_s: float) -> None:
    tokens, texts = sentence(30)
    tokens.append(0)
    async with transcribing() as (server, _), scribe(server) as client:

        async def speak() -> None:
            await client.send(Audio(SECOND))
            await client.speak(spoken(tokens), pause_s=pause_s)
            for _ in range(5):
                await client.send(Audio(SECOND))
            await client.send(Marker(7))
            for _ in range(35):
                await client.send(Audio(SECOND))

        speaking = asyncio.create_task(speak())
        assert await client.receive() == Ready()
        assert await client.until(Marker) == Marker(7)
        await speaking
        assert client.texts == texts
        assert len(client.told(EndWord)) == len(texts)
        starts = [word.start_time for word in client.told(Word)]
        # A second is 12.5 frames: the first word's boundary straddles frames 12 and 13 of the audio.
        assert starts == pytest.approx([(12 + 4 * word + 2) * 0.08 for word in range(30)], abs=0.081)
        steps = client.told(Step)
        assert [step.step_idx for step in steps] == list(range(1, len(steps) + 1))
        assert all(step.prs == PAUSES for step in steps)


@pytest.mark.parametrize("chunk", [480, 1000, 1920, 24_000, 40_000])
async def test_pieces_of_any_length_are_heard_whole(chunk: int) -> None:
    tokens, texts = sentence(50)
    async with transcribing(step_s=0.0005) as (server, _), scribe(server) as client:
        await client.speak(spoken(tokens), chunk)
        await client.send(Marker(1))
        await client.until(Marker)
        assert client.texts == texts
        assert [word.start_time for word in client.told(Word)] == pytest.approx(
            [(4 * word + 2) * 0.08 for word in range(50)]
        )


@pytest.mark.parametrize("prefix_s", [None, 0.0, 0.08, 1.0])
async def test_silence_before_the_audio_is_heard_at_the_open_and_delays_no_frame(
    prefix_s: float | None, tmp_path: Path
) -> None:
    timing = {"audio_delay_seconds": 0.08 * DELAY_FRAMES}
    timing |= {} if prefix_s is None else {"audio_silence_prefix_seconds": prefix_s}
    spec, prefix = replace(STT, generation={"stt_config": timing}), {None: 2, 1.0: 13}.get(prefix_s, 1)
    tokens, texts = sentence(3)
    async with transcribing(spec=spec, usage=str(tmp_path / "usage")) as (server, steps):
        async with scribe(server) as client:
            await server.eventually(lambda: steps.taken == prefix)  # the client has sent nothing
            for frame, token in enumerate([*tokens, *[3] * (DELAY_FRAMES + 1)], start=1):
                await client.send(Audio(spoken([token])))
                assert (await client.until(Step)).step_idx == frame
                assert steps.taken == prefix + frame  # one tick answers it
            assert client.texts == texts
            assert [word.start_time for word in client.told(Word)] == pytest.approx([0.16, 0.48, 0.80])
        await server.is_empty()
        server.services.access.usage.close()
    used = json.loads((tmp_path / "usage").read_text())
    assert used["seconds_in"] == round(0.08 * (len(tokens) + DELAY_FRAMES + 1), 2)


async def test_a_marker_comes_back_without_silence_and_leaves_no_trace() -> None:
    async with transcribing() as (server, _), scribe(server) as client:
        said = []
        for turn in range(4):
            tokens, texts = sentence(2, first=2 * turn)
            said += texts
            await client.speak(spoken(tokens))
            await client.send(Marker(turn))
            assert await client.until(Marker) == Marker(turn)
            assert client.texts == said
        steps = client.told(Step)
        assert [step.step_idx for step in steps] == list(range(1, 4 * 8 + 1))
        starts = [word.start_time for word in client.told(Word)]
        assert starts == pytest.approx([(4 * word + 2) * 0.08 for word in range(8)])


async def test_a_marker_is_due_after_the_delay_while_the_caller_goes_on() -> None:
    async with transcribing() as (server, steps), scribe(server) as client:
        steps.held_at = 1 + 3  # until all that the caller says is there
        await client.speak(spoken([3] * 4))
        await client.send(Marker(1))
        await client.speak(spoken([3] * (DELAY_FRAMES + 2)))
        (call,) = server.calls
        wanted = 1 + 4 + DELAY_FRAMES + 2
        await server.eventually(
            lambda: (it := call.participant.session) is not None and it.next_frame == wanted
        )
        steps.go_on()
        await client.until(Marker)
        kinds = [type(message) for message in client.messages]
        assert kinds == [Ready, *[Step] * (4 + DELAY_FRAMES), Marker]
        await server.eventually(lambda: steps.taken == 1 + 4 + DELAY_FRAMES + 2)  # no silence was needed


async def test_markers_come_back_in_order_and_at_once_when_nothing_was_said() -> None:
    async with transcribing() as (server, _), scribe(server) as client:
        await client.send(Init())
        for marker in (3, -1, 2**62):
            await client.send(Marker(marker))
        assert [await client.receive() for _ in range(4)] == [Ready(), Marker(3), Marker(-1), Marker(2**62)]


async def test_two_callers_count_their_own_steps_and_hear_their_own_words() -> None:
    async with transcribing() as (server, _), scribe(server) as one, scribe(server) as other:
        (first, first_texts), (second, second_texts) = sentence(5), sentence(9, first=20)
        await asyncio.gather(one.speak(spoken(first)), other.speak(spoken(second), 700))
        for client, frames in ((one, 20), (other, 36)):
            await client.send(Marker(0))
            await client.until(Marker)
            assert [step.step_idx for step in client.told(Step)] == list(range(1, frames + 1))
        assert (one.texts, other.texts) == (first_texts, second_texts)


async def test_without_a_free_row_the_client_is_told_in_kyutais_words() -> None:
    async with transcribing(slots=1) as (server, _), scribe(server) as first:
        await first.receive()
        async with scribe(server) as second:
            assert await second.receive() == Error("no free channels")
            closed = await second.receive()
            assert isinstance(closed, Closed)
            assert closed.code == 1013
        async with scribe(server, "wait=5") as waiting:
            await waiting.speak(spoken(sentence(2)[0]))
            await waiting.send(Marker(1))
            await first.ws.close()
            assert await waiting.receive() == Ready()
            await waiting.until(Marker)
            assert waiting.texts == sentence(2)[1]  # what was said in the queue is heard


async def test_a_row_is_free_again_when_its_caller_goes() -> None:
    async with transcribing(slots=1) as (server, _):
        for turn in range(3):
            async with scribe(server) as client:
                tokens, texts = sentence(1, first=turn)
                await client.speak(spoken([*tokens, *[3] * DELAY_FRAMES]))
                assert (await client.until(Word)).text == texts[0]
            await server.is_empty()


async def test_a_server_that_leaves_says_so() -> None:
    async with transcribing() as (server, _), scribe(server) as client:
        await client.receive()
        server.engine.drain()
        async with scribe(server) as late:
            message = await late.receive()
            assert isinstance(message, Error)
            assert "shutting down" in message.message
            assert await late.receive() == Closed(1001, "")
        await client.speak(spoken(sentence(1)[0]))
        await client.send(Marker(1))
        await client.until(Marker)  # who is here is served


async def test_a_failed_step_ends_its_session_and_moves_nobodys_clock() -> None:
    async with transcribing(poison=BROKEN) as (server, _), scribe(server) as one, scribe(server) as other:
        for client in (one, other):
            await client.send(Audio(spoken([3])))
            await client.until(Step)
        tokens, texts = sentence(3)
        await asyncio.gather(one.speak(spoken([BROKEN])), other.speak(spoken(tokens)))
        assert "planned to fail" in (await one.until(Error)).message
        await other.send(Marker(1))
        await other.until(Marker)
        # The frame of the failed step had its token lost, and takes no time with it.
        assert other.texts[-2:] == texts[-2:]
        starts = [word.start_time for word in other.told(Word)]
        assert starts[-2:] == pytest.approx([(1 + 4 * word + 2) * 0.08 for word in (1, 2)])


async def test_opus_pcm_and_markers_keep_their_order() -> None:
    encoder = make_encoder("ogg")
    stream = b"".join(b"".join(encoder.encode(np.zeros(FRAME_SAMPLES, np.float32))) for _ in range(25))
    async with transcribing() as (server, _), scribe(server) as client:
        for start in range(0, len(stream), 100):
            await client.send(OggOpus(stream[start : start + 100]))
        await client.send(Marker(1))
        tokens, texts = sentence(3)
        await client.speak(spoken(tokens))
        await client.send(Marker(2))
        assert await client.until(Marker) == Marker(1)
        assert await client.until(Marker) == Marker(2)
        assert client.texts == texts
        assert len(client.told(Step)) == 25 + len(tokens)


async def test_a_marker_in_the_middle_of_a_frame_comes_back() -> None:
    async with transcribing() as (server, _), scribe(server) as client:
        tokens, texts = sentence(2)
        await client.speak(spoken(tokens)[:-500])
        await client.send(Marker(1))
        await client.until(Marker)
        assert client.texts == texts


async def test_a_request_without_an_upgrade_is_told_what_this_is() -> None:
    async with transcribing() as (server, _):
        status, text, _ = await server.get(kyutai.PATH)
        assert status == 426
        assert "this is a WebSocket" in text
        server.engine.drain()
        status, _, headers = await server.get(kyutai.PATH)
        assert (status, headers["Retry-After"]) == (503, "10")
        with pytest.raises(aiohttp.WSServerHandshakeError, match="400"):
            async with scribe(server, "wait=long"):
                pass


async def test_modules_info_lists_the_route() -> None:
    async with transcribing(slots=3) as (server, _):
        _, text, _ = await server.get("/api/modules_info")
        assert kyutai.PATH in text
        assert '"total_slots": 3' in text
