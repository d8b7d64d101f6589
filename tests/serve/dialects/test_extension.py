"""The opt-in extension: formats, stamps, events, queue, and close codes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from antiphon.audio.codecs import make_decoder, make_encoder
from antiphon.backends.base import FloatArray, StepInputs, StepOutputs
from antiphon.backends.null import STAMP_SAMPLES, NullFaults
from antiphon.errors import DrainingError
from antiphon.protocol import events, moshi
from antiphon.protocol.chat import AudioFormat
from antiphon.serve.hosting.app import close_calls
from antiphon.serve.transport.socket import Socket
from tests.serve.harness import FRAME_SAMPLES, serving, speech
from tests.support.null_backend import NullBackend
from tests.support.null_models import CODEC, null_checkpoint
from tests.support.stamp import read_stamp


async def test_ready_says_what_runs_here() -> None:
    async with serving(slots=3) as server, server.call("ext=1") as client:
        assert await client.receive() == moshi.Handshake(0, 0)
        ready = await client.event("ready")
        fields = {name: ready.fields[name] for name in ("model", "sample_rate", "frame_samples", "slots")}
        assert fields == {"model": CODEC.name, "sample_rate": 24000, "frame_samples": 1920, "slots": 3}
        assert ready.fields["session"]


async def test_a_ping_is_answered_even_in_the_queue_and_only_with_the_extension() -> None:
    async with serving(slots=1) as server, server.caller() as admitted:
        await admitted.send(moshi.Ping())
        assert await admitted.until(lambda it: isinstance(it, moshi.Ping))
        async with server.call("ext=1&wait=30") as queued:
            await queued.event("queued")
            await queued.send(moshi.Ping())
            assert await queued.receive() == moshi.Ping()
    async with serving() as server, server.call() as stock:
        await stock.send(moshi.Ping())
        await stock.send(moshi.Control(moshi.ControlAction.END_TURN))
        await stock.ws.close()
        assert moshi.Ping() not in stock.messages


async def test_float_pcm_comes_back_exactly_and_stamped() -> None:
    pcm = speech(5)
    async with serving() as server, server.caller() as client:
        await client.speak(pcm)
        for index in range(5):
            stamped, heard = await client.reply()
            assert stamped.frame == index
            assert read_stamp(heard).frame == index
            said = pcm[index * FRAME_SAMPLES :][STAMP_SAMPLES:FRAME_SAMPLES]
            np.testing.assert_array_equal(heard[STAMP_SAMPLES:], said)
            assert stamped.step_ms >= 0.9


async def test_any_split_of_the_samples_is_the_same_audio() -> None:
    pcm = speech(4)
    async with serving() as server, server.caller() as client:
        for start in range(0, pcm.size, 700):
            await client.speak(pcm[start : start + 700])
        for index in range(4):
            _, heard = await client.reply()
            said = pcm[index * FRAME_SAMPLES :][STAMP_SAMPLES:FRAME_SAMPLES]
            np.testing.assert_array_equal(heard[STAMP_SAMPLES:], said)


@pytest.mark.parametrize(
    ("audio_format", "messages_per_frame"),
    [(AudioFormat.OPUS, 4), (AudioFormat.PCM_S16LE, 1), (AudioFormat.PCM_F32LE, 1), (AudioFormat.OGG, None)],
)
async def test_every_format_carries_speech_both_ways(
    audio_format: AudioFormat, messages_per_frame: int | None
) -> None:
    seconds = np.arange(12 * FRAME_SAMPLES) / 24000
    tone = (0.3 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32)
    encoder, decoder = make_encoder(audio_format), make_decoder(audio_format)
    heard: list[FloatArray] = []
    frames: list[int] = []
    async with serving() as server, server.call(f"ext=1&format={audio_format}") as client:
        await client.event("ready")
        for start in range(0, tone.size, FRAME_SAMPLES):
            for payload in encoder.encode(tone[start : start + FRAME_SAMPLES]):
                await client.send(moshi.Audio(payload))
        while sum(piece.size for piece in heard) < 11 * FRAME_SAMPLES:
            message = await client.receive()
            if isinstance(message, moshi.StampedAudio):
                frames.append(message.frame)
                heard.append(decoder.feed(message.data))
            elif isinstance(message, moshi.Audio):
                heard.append(decoder.feed(message.data))
    if messages_per_frame is None:
        assert frames == []
    else:
        assert frames[: 11 * messages_per_frame] == [i for i in range(11) for _ in range(messages_per_frame)]
    middle = np.concatenate(heard)[6 * FRAME_SAMPLES :][STAMP_SAMPLES + 800 : FRAME_SAMPLES]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(middle.size)))
    assert abs(np.argmax(spectrum) * 24000 / middle.size - 440) < 30


async def test_output_is_clipped_to_full_scale() -> None:
    async with serving() as server, server.caller() as client:
        await client.speak(np.full(FRAME_SAMPLES, 0.5, np.float32) * 3)
        _, heard = await client.reply()
        assert heard[STAMP_SAMPLES:].max() == 1.0


async def test_stats_come_once_a_second_and_add_up() -> None:
    async with serving() as server, server.caller() as client:
        await client.speak(speech(3))
        while True:
            stats = await client.event("stats")
            if stats.fields["frames_out"] == 3:
                break
        assert stats.fields["frames_in"] == 3
        assert stats.fields["lost"] == stats.fields["dropped"] == stats.fields["queue_frames"] == 0
        assert stats.fields["step_ms_p50"] >= 0.9


async def test_set_changes_parameters_and_a_bad_one_ends_the_call() -> None:
    async with serving() as server, server.caller() as client:
        await client.send(moshi.Event("set", {"parameters": {"text_temperature": 0.5}}))
        session = server.calls[0].participant.session
        assert session is not None
        await server.eventually(lambda: session.parameters.text_temperature == 0.5)
        await client.send(moshi.Event("set", {"parameters": {"text_temperature": 9}}))
        error = await client.event("error")
        assert error.fields["code"] == 1007
        assert "0.2 to 1.2 are allowed" in error.fields["message"]
        assert (await client.closed()).code == 1007


async def test_an_event_nobody_knows_is_an_error_that_names_those_there_are() -> None:
    async with serving() as server, server.caller() as client:
        await client.send(moshi.Event("dance"))
        assert "only set, flush, bye" in (await client.event("error")).fields["message"]


async def test_a_reason_that_utf_8_cannot_hold_is_told_as_far_as_it_goes() -> None:
    async with serving() as server, server.call() as client:
        await client.receive()
        ending = asyncio.create_task(close_calls(server.app, DrainingError("no file \udcff")))
        closed = await client.closed()
        assert (closed.code, closed.reason) == (1001, "no file ?")
        await ending


async def test_an_end_that_fails_frees_the_row_and_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(socket: Socket, code: int, reason: str) -> None:
        raise ValueError(f"no way to close with {code}")

    async with serving(slots=1) as server, server.caller() as client:
        monkeypatch.setattr(Socket, "close", broken)
        await close_calls(server.app, DrainingError("leaving"))
        client.cut()
        await server.is_empty()


async def test_flush_throws_away_what_waits() -> None:
    async with serving(step_ms=100) as server, server.caller() as client:
        await client.speak(speech(6))
        await client.send(moshi.Event("flush"))
        at_frame = (await client.event("interrupted")).fields["at_frame"]
        assert at_frame == 6
        await client.speak(speech(1, seed=1))
        stamped, _ = await client.reply()
        assert stamped.frame == 6


async def test_flushes_in_the_queue_are_told_as_one_at_the_beginning() -> None:
    async with serving(slots=1) as server, server.caller() as first:
        async with server.call("ext=1&format=pcm_f32le&wait=60") as client:
            await client.event("queued")
            for _ in range(100):
                await client.send(moshi.Event("flush"))
            await client.send(moshi.Ping())
            await client.until(lambda it: isinstance(it, moshi.Ping))  # all of them were followed
            await first.send(events.bye())
            await client.event("ready")
            await client.speak(speech(1))
            await client.reply()
        told = [it for it in client.messages if isinstance(it, moshi.Event) and it.type == "interrupted"]
        assert len(told) == 1


async def test_restart_is_a_flush() -> None:
    async with serving(step_ms=100) as server, server.caller() as client:
        await client.speak(speech(6))
        await client.send(moshi.Control(moshi.ControlAction.RESTART))
        assert (await client.event("interrupted")).fields["at_frame"] == 6


async def test_bye_closes_with_1000() -> None:
    async with serving(slots=1) as server, server.caller() as client:
        await client.send(events.bye())
        assert (await client.closed()).code == 1000
        await server.is_empty()


async def test_more_than_the_model_can_take_drops_the_oldest_and_tells_in_stats() -> None:
    async with serving(step_ms=200, engine={"input_frames": 4}) as server, server.caller() as client:
        await client.speak(speech(8))
        frames: list[int] = []
        while 7 not in frames:
            stamped, _ = await client.reply()
            frames.append(stamped.frame)
        # How many frames a tick finds depends on how fast the socket brings them.
        assert frames == sorted(set(frames))
        assert len(frames) < 8
        assert frames[-4:] == [4, 5, 6, 7]
        assert (await client.event("stats")).fields["dropped"] == 8 - len(frames)


async def test_the_queue_tells_positions_and_admits_in_order() -> None:
    async with (
        serving(slots=1) as server,
        server.caller() as first,
        server.call("ext=1&wait=30") as second,
        server.call("ext=1&wait=30") as third,
    ):
        assert (await second.event("queued")).fields["position"] == 0
        queued = await third.event("queued")
        assert (queued.fields["position"], queued.fields["ahead"]) == (1, 1)
        assert queued.fields["retry_after_s"] >= 1
        await first.send(events.bye())
        await second.event("ready")
        assert (await third.event("queued")).fields["position"] == 0
        await second.send(events.bye())
        await third.event("ready")


async def test_who_leaves_the_queue_makes_room_in_it() -> None:
    async with (
        serving(slots=1) as server,
        server.caller(),
        server.call("ext=1&wait=30") as third,
        server.call("ext=1&wait=30") as last,
    ):
        await third.event("queued")
        assert (await last.event("queued")).fields["position"] == 1
        await third.send(events.bye())
        assert (await last.event("queued")).fields["position"] == 0


async def test_giving_up_the_wait_is_1013_with_when_to_come_again() -> None:
    async with serving(slots=1) as server, server.caller(), server.call("ext=1&wait=1.5") as waiting:
        error = await waiting.event("error")
        assert error.fields["code"] == 1013
        assert error.fields["retry_after_s"] >= 1
        assert "within the 1.5 s" in error.fields["message"]
        assert (await waiting.closed()).code == 1013


async def test_a_full_server_accepts_extended_clients_to_tell_them() -> None:
    async with serving(slots=1) as server, server.caller(), server.call("ext=1") as refused:
        error = await refused.event("error")
        assert (error.fields["code"], "retry_after_s" in error.fields) == (1013, True)
        closed = await refused.closed()
        assert closed.code == 1013
        assert "the only row is in use" in closed.reason


async def test_a_failed_step_ends_only_the_sessions_it_touched() -> None:
    faults = NullFaults(fail_rows={3: (0, 1)})  # whichever of them speaks then
    async with serving(faults=faults) as server, server.caller() as first, server.caller() as second:
        await second.speak(speech(1))
        await second.reply()
        await first.speak(speech(5))
        error = await first.event("error")
        assert error.fields["code"] == 1011
        assert (await first.closed()).code == 1011
        await second.speak(speech(1))
        stamped, _ = await second.reply()
        assert stamped.frame == 1


class NanBackend(NullBackend):
    """A model that went wrong in its arithmetic."""

    def step(self, inputs: StepInputs) -> StepOutputs:
        outputs = super().step(inputs)
        assert outputs.pcm is not None
        outputs.pcm[:] = np.nan
        return outputs


@pytest.mark.parametrize("audio_format", list(AudioFormat))
async def test_audio_of_the_models_own_that_is_no_audio_is_our_fault(audio_format: AudioFormat) -> None:
    model = (null_checkpoint(CODEC), NanBackend(CODEC, 1))
    async with serving(model=model) as server, server.call(f"ext=1&format={audio_format}") as client:
        await client.event("ready")
        for payload in make_encoder(audio_format).encode(speech(1)) * 2:
            await client.send(moshi.Audio(payload))
        error = await client.event("error")
        assert error.fields["code"] == 1011
        assert "the model's audio cannot be encoded" in error.fields["message"]
        assert (await client.closed()).code == 1011


async def test_a_lost_device_ends_every_session_with_a_reason() -> None:
    async with serving(faults=NullFaults(lose_device_at=2)) as server:
        async with server.caller() as first, server.caller() as second:
            await first.speak(speech(4))
            for client in (first, second):
                error = await client.event("error")
                assert error.fields["code"] == 1011
                assert "planned to be lost" in error.fields["message"]
                assert (await client.closed()).code == 1011
        status, text, _ = await server.get("/healthz")
        assert status == 503
        assert "planned to be lost" in text
        await asyncio.sleep(0)
