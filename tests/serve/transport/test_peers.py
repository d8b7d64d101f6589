"""Peers that read slowly, send too much, are silent or send garbage: bounded and isolated."""

from __future__ import annotations

import asyncio
import socket
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.audio.codecs import make_encoder
from antiphon.protocol import moshi
from antiphon.protocol.chat import AudioFormat
from tests.serve.harness import FRAME_SAMPLES, PATIENCE_S, Client, Server, serving, speech, unsent_bytes
from tests.support.held import held_bytes
from tests.support.stamp import read_stamp

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples


async def well_served(client: Client, frames: int, period_s: float = 0.02) -> list[float]:
    """Speak frame by frame and hear each answer, in order; returns the seconds each took."""
    took: list[float] = []
    for index in range(frames):
        start = time.perf_counter()
        await client.speak(speech(1, index))
        stamped, heard = await client.reply()
        took.append(time.perf_counter() - start)
        assert read_stamp(heard).frame == stamped.frame
        await asyncio.sleep(period_s)
    return took


def stop_reading(client: Client) -> None:
    """From now on this client takes nothing more from the network than its kernel does by itself."""
    client.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.transport.pause_reading()


async def test_a_slow_reader_loses_its_oldest_replies_and_memory_stays_bounded() -> None:
    limits = {"max_unsent_bytes": 8192}
    async with serving(limits=limits, engine={"output_frames": 10}) as server, server.caller() as client:
        async with server.caller() as bystander:
            stop_reading(client)
            calls = list(server.calls)
            for index in range(600):
                await client.speak(speech(1, index))
                await asyncio.sleep(0.002)
            assert max(await well_served(bystander, 10)) < 10.0
            stats = [it.participant.stats() for it in calls]
            slow = max(stats, key=lambda it: it.frames_in)
            assert slow.dropped_out > 20
            for it in calls:
                assert unsent_bytes(it) < 8192 + 3 * 4 * FRAME_SAMPLES
                assert len(it.exchange.waiting) <= 10
        client.transport.resume_reading()
        interrupted = await client.event("interrupted")
        stamped, _ = await client.reply()
        assert stamped.frame >= interrupted.fields["at_frame"] > 0
        # A second interruption may have come meanwhile; in the end the newest frame is there.
        while stamped.frame < 599:
            stamped, _ = await client.reply()


@pytest.mark.parametrize("asks", ["ping", "flush"])
async def test_answers_to_one_who_does_not_read_stay_bounded(asks: str) -> None:
    limits = {"max_unsent_bytes": 4096, "max_messages_per_s": 100_000}
    async with serving(limits=limits) as server, server.caller("") as client:
        stop_reading(client)
        (call,) = server.calls
        flush = moshi.encode(moshi.Event("flush"))
        for _ in range(10_000):
            await (client.ws.ping(b"?" * 100) if asks == "ping" else client.ws.send_bytes(flush))
        await client.speak(speech(1))
        await server.eventually(lambda: call.participant.stats().frames_in > 0)
        assert unsent_bytes(call) < 3 * 4096
        assert not call.exchange.waiting
        client.cut()


async def test_a_flooding_writer_is_slowed_dropped_and_harms_nobody() -> None:
    packet = moshi.encode(moshi.Audio(make_encoder(AudioFormat.OPUS).encode(speech(1))[0]))
    async with (
        serving(step_ms=5, limits={"max_messages_per_s": 200}) as server,
        server.call("ext=1&format=opus") as flood,
    ):
        await flood.event("ready")
        (flooded,) = server.calls

        async def pour() -> None:
            while True:
                await flood.ws.send_bytes(packet)

        start = time.monotonic()
        async with server.caller() as bystander:
            pouring = asyncio.create_task(pour())
            took = await well_served(bystander, 60)
            for call in server.calls:
                assert held_bytes(call.dialect) < 10 * len(packet)
        await server.eventually(lambda: flooded.participant.stats().frames_in >= 50)
        pouring.cancel()
        flood.cut()
        assert sorted(took)[len(took) // 2] < 5.0
        # 50 frames a second are 200 packets; the first second may be spent at once.
        assert flooded.participant.stats().frames_in <= 50 * (time.monotonic() - start) + 50 + 16


async def test_a_flooding_writer_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """While we do not read, the peer's silence says nothing."""
    monkeypatch.setattr("antiphon.serve.transport.socket.HOLD_S", 2.0)
    limits = {"max_messages_per_s": 50, "liveness_timeout_s": 1.0}
    async with serving(limits=limits) as server, server.caller() as client:
        (call,) = server.calls
        for index in range(100):
            await client.speak(speech(1, index)[:240])

        def is_read_again() -> bool:
            # The first second's worth is 6 frames; then it is not read for twice the liveness timeout.
            return call.participant.stats().frames_in > 8

        await server.eventually(lambda: is_read_again() or not server.calls)
        assert server.calls


async def test_a_half_open_peer_is_closed_after_the_liveness_timeout() -> None:
    async with serving(limits={"liveness_timeout_s": 1.5}) as server, server.caller() as client:
        start = time.monotonic()
        await client.speak(speech(1))
        await client.reply()
        stop_reading(client)  # no pong will be sent: to the server this is a cable that was pulled
        await server.is_empty()
        assert 1.5 < time.monotonic() - start < PATIENCE_S / 2
        client.cut()


async def test_a_silent_peer_that_answers_pings_lives() -> None:
    async with serving(limits={"liveness_timeout_s": 1.5}) as server, server.caller() as client:
        reading = asyncio.create_task(client.closed())
        (call,) = server.calls
        signs_s: set[float] = set()

        def has_answered() -> bool:
            assert call.exchange.transport is not None
            signs_s.add(call.exchange.transport.seen_s)
            return len(signs_s) > 3

        # Three pongs, each after more than half a second of silence: longer than the liveness timeout.
        await server.eventually(lambda: reading.done() or has_answered())
        assert not reading.done()
        assert server.calls
        reading.cancel()


@pytest.mark.parametrize(
    ("limits", "frames", "words"),
    [({"handshake_timeout_s": 0.2}, 0, "no first audio"), ({"idle_timeout_s": 0.2}, 1, "no audio")],
)
async def test_a_caller_who_says_nothing_is_closed(limits: dict[str, float], frames: int, words: str) -> None:
    async with serving(limits=limits) as server, server.caller() as client:
        await client.speak(speech(frames))
        error = await client.event("error")
        assert error.fields["code"] == 1008
        assert words in error.fields["message"]
        assert (await client.closed()).code == 1008


async def test_nan_in_float_audio_ends_the_call_alone() -> None:
    async with serving() as server, server.caller() as client, server.caller() as bystander:
        await client.speak(np.full(10, np.nan, np.float32))
        assert (await client.event("error")).fields["code"] == 1007
        await well_served(bystander, 3)


async def test_random_bytes_never_disturb_a_bystander() -> None:
    async with serving(slots=3) as server, server.caller() as bystander:

        async def nonsense(query: str, messages: list[bytes]) -> None:
            async with server.call(query) as client:
                for data in messages:
                    await client.ws.send_bytes(data)
                await client.ws.close()

        async def try_all(server: Server) -> None:
            loop = asyncio.get_running_loop()

            @settings(max_examples=60, suppress_health_check=list(HealthCheck))
            @given(
                st.sampled_from(["", "ext=1&format=ogg", "ext=1&format=opus", "ext=1&format=pcm_s16le"]),
                st.lists(
                    st.one_of(
                        st.binary(max_size=300),
                        st.binary(max_size=300).map(lambda data: b"\x01" + data),
                        st.binary(max_size=300).map(lambda data: b"\x01OggS" + data),
                        st.binary(max_size=100).map(lambda data: b"\x10" + data),
                    ),
                    max_size=5,
                ),
            )
            def example(query: str, messages: list[bytes]) -> None:
                asyncio.run_coroutine_threadsafe(nonsense(query, messages), loop).result(PATIENCE_S)

            await asyncio.to_thread(example)

        trying = asyncio.create_task(try_all(server))
        while not trying.done():
            await well_served(bystander, 5, period_s=0.0)
        await trying
        health = server.engine.health()
        assert health.is_healthy
        await server.eventually(lambda: server.engine.health().active == 1)
